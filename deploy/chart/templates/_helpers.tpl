{{- define "genrec.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "genrec.labels" -}}
app.kubernetes.io/name: genrec
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "genrec.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "genrec.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* Seconds that a pod serves on when it leaves. The router sends it nothing more once it has no name: what the
   cluster's DNS keeps that for, 6 s that the router does (`hold` of its resolvers), and what Kubernetes takes to tell DNS. */ -}}
{{- define "genrec.leaves" -}}
{{ add .Values.router.dnsSeconds 10 }}
{{- end }}

{{- /* A real request to every ensemble: Triton's own readiness does not notice a dead model before 26.04. */ -}}
{{- define "genrec.probe" -}}
exec:
  command: [python3, -m, deploy.check, /artifact, "127.0.0.1:8000", {{ join ", " .Values.servers.ensembles }}]
timeoutSeconds: 10
{{- end }}
