"""Requests that nobody should send, as they go over the wire: gRPC messages, and HTTP well formed or not."""

from __future__ import annotations

import gzip
import json

from tritonclient.grpc import service_pb2 as pb

from tests.serving.fuzz import Cases, Tensor, good_history, tensor

ENSEMBLES = ("recommend", "recommend_staged", "recommend_draft")
OTHER_JSON = [
    b"[]", b"0", b'""', b"null", b"{}", b'{"inputs":1}', b'{"inputs":[1]}', b'{"inputs":[{}]}', b'{"id":7,"inputs":[]}',
    b'{"inputs":[{"name":1,"shape":"x","datatype":[],"data":{}}]}', b"[" * 200, b'{"inputs":' * 200,
]  # fmt: skip
ODD_DATA = [
    b'{"inputs":[{"name":"history","datatype":"INT64","shape":[1,1],"data":%s},'
    b'{"name":"top_k","datatype":"INT32","shape":[1,1],"data":[1]}]}' % data
    for data in (
        b'["a"]', b"[[1],[2,3]]", b"[null]", b"[1e400]", b"[1.5]", b'[{"x":1}]', b"7", b"[[[[[[[1]]]]]]]", b"{}",
        b"[99999999999999999999]", b"[true]", b"[-0]", b"[NaN]", b"[,]",
    )
]  # fmt: skip


def described(t: Tensor) -> pb.ModelInferRequest.InferInputTensor:
    return pb.ModelInferRequest.InferInputTensor(name=t.name, datatype=t.kind, shape=t.shape)


class Fuzzer(Cases):
    """Cases as bytes."""

    def good(self, number: int) -> pb.ModelInferRequest:
        """A request that is right, among the others: of all ensembles in turn, of ten histories; its id says which."""
        tensors = [tensor("history", good_history(self.world, number)), tensor("top_k", 5, "INT32")]
        return pb.ModelInferRequest(
            model_name=ENSEMBLES[number // 10 % 3], id=f"good {number}", raw_input_contents=[t.raw for t in tensors],
            inputs=[described(t) for t in tensors],
        )  # fmt: skip

    def grpc(self) -> pb.ModelInferRequest:
        """A protobuf message; now and then its tensors and its bytes do not correspond."""
        model, tensors = self.case()
        listed = [
            pb.ModelInferRequest.InferInputTensor(name=t.name, datatype=t.kind, shape=t.shape)
            for t in tensors
        ]
        raw = [t.raw for t in tensors]
        if self.chance(0.05):
            raw = self.pick([raw[:-1], [*raw, b"more"], raw[::-1], []])
        outputs = []
        if self.chance(0.05):
            wanted = self.pick(["item_ids", "nothing", "kv", "drafted", ""])
            outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name=wanted)]
        return pb.ModelInferRequest(
            model_name=model, model_version=self.pick(["", "", "", "", "1", "9", "x"]), inputs=listed,
            outputs=outputs, raw_input_contents=raw,
        )  # fmt: skip

    def http(self) -> bytes:
        """A whole HTTP/1.1 request: JSON or the binary extension, and in one of five something broken in it."""
        model, tensors = self.case()
        head, tail = [], b""
        for t in tensors:
            about: dict[str, object] = {"name": t.name, "datatype": t.kind, "shape": list(t.shape)}
            values = t.values if self.chance(0.6) else None
            if values is None:
                about["parameters"] = {"binary_data_size": len(t.raw)}
                tail += t.raw
            else:
                about["data"] = values  # NaN and Infinity too: no JSON, but Python writes them
            head.append(about)
        text = json.dumps({"inputs": head}).encode()
        headers = {"Content-Length": str(len(text) + len(tail))}
        if tail:
            headers["Inference-Header-Content-Length"] = str(len(text))
        body = text + tail
        if self.chance(0.2):
            headers, body = self._broken(headers, text, tail)
        path = "".join(c if c.isascii() else "%C3%A9" for c in model)
        lines = [
            f"POST /v2/models/{path}/infer HTTP/1.1",
            "Host: x",
            *(f"{k}: {v}" for k, v in headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def _broken(self, headers: dict[str, str], text: bytes, tail: bytes) -> tuple[dict[str, str], bytes]:
        """A body that is no request, with an honest Content-Length, or one whose parts contradict its headers."""
        way = self.draw.randrange(8)
        size = "Inference-Header-Content-Length"
        if way == 0:  # truncated, at any place
            body = text[: self.draw.randrange(len(text))]
        elif way == 1:  # noise
            body = self.draw.randbytes(self.draw.randrange(300))
        elif way == 2:  # one byte changed
            place = self.draw.randrange(len(text))
            body = text[:place] + self.draw.randbytes(1) + text[place + 1 :] + tail
        elif way == 3:  # where JSON ends and bytes begin
            headers[size] = self.pick(
                ["0", "1", "-1", "99999999", "x", "18446744073709551615", str(len(text) - 1)]
            )
            body = text + tail
        elif way == 4:  # JSON of another kind
            body = self.pick(OTHER_JSON)
        elif way == 5:  # data that are no numbers
            body = self.pick(ODD_DATA)
            headers.pop(size, None)
        elif way == 6:  # compressed, or said to be
            headers["Content-Encoding"] = self.pick(["gzip", "deflate", "br"])
            body = gzip.compress(text) if self.chance(0.5) else text
        else:  # sizes of binary tensors
            amount = self.pick([b"-1", b"0", b"1", b"99999999999", b"18446744073709551615", b'"x"', b"1.5"])
            body = (
                b'{"inputs":[{"name":"history","datatype":"INT64","shape":[1,1],"parameters":{"binary_data_size":%s}}]}'
                % amount
            )
            headers[size] = str(len(body))
            body += b"12345678"
        headers["Content-Length"] = str(len(body))
        return headers, body
