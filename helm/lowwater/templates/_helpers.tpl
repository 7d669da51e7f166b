{{/* The name of all objects. A StatefulSet's name and a hash stand in a label of 63 characters, hence 50. */}}
{{- define "lowwater.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The headless Service, under which each shard has a name of its own. */}}
{{- define "lowwater.headless" -}}
{{ include "lowwater.fullname" . }}-shards
{{- end -}}

{{/* What never changes, because a StatefulSet's selector cannot. */}}
{{- define "lowwater.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods of the authority: not those of the test. */}}
{{- define "lowwater.podSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: authority
{{- end -}}

{{- define "lowwater.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "lowwater.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "lowwater.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "lowwater.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Empty without Redis. */}}
{{- define "lowwater.sharded" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret }}true{{ end -}}
{{- end -}}

{{- define "lowwater.redisSecret" -}}
{{ default (printf "%s-redis" (include "lowwater.fullname" .)) .Values.redis.existingSecret }}
{{- end -}}

{{/* Empty without access control. */}}
{{- define "lowwater.accessSecret" -}}
{{- if .Values.access.existingSecret -}}
{{ .Values.access.existingSecret }}
{{- else if .Values.access.config -}}
{{ include "lowwater.fullname" . }}-access
{{- end -}}
{{- end -}}

{{/* Where clients in the cluster reach the authority. */}}
{{- define "lowwater.host" -}}
{{ include "lowwater.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/*
Who is asked whether the authority serves. Its health service does not look at Redis, so that a Redis that is away for a moment
neither takes the shards out of the Service nor restarts them. The kubelet's gRPC probes speak no TLS; over HTTPS it asks without
looking at the certificate, and /healthz wants no token. A look at the port alone would not do: it is open before the replay ends.
*/}}
{{- define "lowwater.probe" -}}
{{- if .Values.tls.existingSecret -}}
httpGet:
  path: /healthz
  port: http
  scheme: HTTPS
{{- else -}}
grpc:
  port: 7420
{{- end -}}
{{- end -}}
