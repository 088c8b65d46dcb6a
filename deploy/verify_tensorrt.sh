#!/usr/bin/env bash
# The tensorrt target from artifact to compared answers, on a machine with Docker, the NVIDIA container toolkit, a GPU
# and this checkout's virtual environment (extras export and test). NOT RUN where this was written: it had neither.
#
#   deploy/verify_tensorrt.sh artifacts/ml-100k [TAG]
#
# Ends with "verified" and status 0 when the served answers are those of the ONNX Runtime reference.
set -euo pipefail

artifact=$(realpath "${1:?artifact folder, e.g. artifacts/ml-100k}")
tag=${2:-26.05}
beam_width=${BEAM_WIDTH:-256}
python=${PYTHON:-python3}
http_port=${HTTP_PORT:-8000} grpc_port=${GRPC_PORT:-8001} metrics_port=${METRICS_PORT:-8002}
cd "$(dirname "$0")/.."

for tool in docker nvidia-smi "$python"; do
    command -v "$tool" >/dev/null || { echo "verify_tensorrt: needs $tool" >&2; exit 2; }
done
[ -f "$artifact/onnx/prefill.onnx" ] || { echo "verify_tensorrt: $artifact has no onnx/; run genrec export" >&2; exit 2; }

echo "== images of $tag"
for target in engines server; do
    docker build --target "$target" --build-arg "TAG=$tag" -t "genrec-$target:$tag" -f deploy/Dockerfile .
done

echo "== engines, as an init step"
docker run --rm --gpus 1 --user "$(id -u):$(id -g)" -v "$artifact:/artifact" "genrec-engines:$tag" /artifact --beam-width "$beam_width"

echo "== a manifest of another plugin must be refused"
spoilt=$(mktemp -d)
container=""
trap 'rm -rf "$spoilt"; [ -z "$container" ] || docker rm -f "$container" >/dev/null' EXIT
cp -r "$artifact/." "$spoilt/"
sed -i 's/"plugin_sha256": "./"plugin_sha256": "x/' "$spoilt/engines/tensorrt/engines.json"
chmod -R a+rX "$spoilt"
if docker run --rm --gpus 1 -v "$spoilt:/artifact:ro" "genrec-server:$tag" /artifact 2>"$spoilt/said"; then
    echo "verify_tensorrt: the server started on engines of another plugin" >&2; exit 1
fi
grep -q plugin_sha256 "$spoilt/said" || { cat "$spoilt/said" >&2; exit 1; }

echo "== the server"
container=$(docker run -d --gpus 1 --network host --shm-size 1g -v "$artifact:/artifact:ro" "genrec-server:$tag" /artifact \
    --beam-width "$beam_width" --http-port "$http_port" --grpc-port "$grpc_port" --metrics-port "$metrics_port")
for _ in $(seq 120); do
    curl -fs "http://127.0.0.1:$http_port/v2/health/ready" >/dev/null && break
    docker inspect -f '{{.State.Running}}' "$container" | grep -q true || { docker logs "$container" >&2; exit 1; }
    sleep 1
done
curl -fs "http://127.0.0.1:$http_port/v2/health/ready" >/dev/null || { docker logs "$container" >&2; exit 1; }

echo "== answers against ONNX Runtime"
"$python" -m deploy.tensorrt.reference "$artifact" --grpc "127.0.0.1:$grpc_port" --beam-width "$beam_width"
echo verified
