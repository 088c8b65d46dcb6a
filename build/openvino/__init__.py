import genrec.engine.quiet_openvino  # noqa: F401  (before any module here imports OpenVINO)
