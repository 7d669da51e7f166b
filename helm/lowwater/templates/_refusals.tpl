{{/* What values.schema.json cannot say: values that do not go together. Each message names the value and the way out. */}}
{{- define "lowwater.refusals" -}}
{{- $sharded := include "lowwater.sharded" . -}}
{{- $access := include "lowwater.accessSecret" . -}}
{{- if and (gt (int .Values.replicaCount) 1) (not $sharded) -}}
{{- fail (printf "replicaCount is %d, but without Redis each replica would be an authority of its own, and tell something else: set redis.url or redis.existingSecret, or replicaCount: 1" (int .Values.replicaCount)) -}}
{{- end -}}
{{- if and .Values.redis.url .Values.redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret both say where Redis is: keep one of them" -}}
{{- end -}}
{{- if and .Values.tls.clientAuth (not .Values.tls.existingSecret) -}}
{{- fail "tls.clientAuth needs TLS: set tls.existingSecret, a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and .Values.access.config .Values.access.existingSecret -}}
{{- fail "access.config and access.existingSecret both say who may do what: keep one of them" -}}
{{- end -}}
{{- if and $access $sharded (not .Values.peerToken.existingSecret) -}}
{{- fail "shards that ask for tokens must present one to each other: set peerToken.existingSecret, a Secret with the key token" -}}
{{- end -}}
{{- if and $access .Values.serviceMonitor.enabled (not .Values.serviceMonitor.tokenSecret.name) -}}
{{- fail "with access a scrape needs a token: set serviceMonitor.tokenSecret.name, a Secret with the token of a principal that has metrics = true" -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- $flag := first (splitList "=" .) -}}
{{- if has $flag (list "--store" "--data" "--deployment" "--advertise" "--log-format" "--tls-cert" "--tls-key" "--tls-client-ca" "--peer-ca" "--access") -}}
{{- fail (printf "extraArgs has %s, which the chart sets itself: use the values redis, persistence, tls, access and logFormat" $flag) -}}
{{- end -}}
{{- end -}}
{{- range $value, $labels := dict "commonLabels" .Values.commonLabels "podLabels" .Values.podLabels -}}
{{- range $label, $_ := $labels -}}
{{- if has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") -}}
{{- fail (printf "%s has %s, by which the Services find the pods: use nameOverride, or another label" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
