{{/*
The name of all objects. A label of 63 characters holds a StatefulSet's name and a hash, hence 50.
*/}}
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

{{/* The Deployment and the Service of the status page. */}}
{{- define "lowwater.page" -}}
{{ include "lowwater.fullname" . }}-page
{{- end -}}

{{/*
Host names by which browsers reach the page: those of its Service, of the links to it, of the
Ingress and of the HTTPRoute, and `page.hosts`.
*/}}
{{- define "lowwater.pageHosts" -}}
{{- $service := printf "%s.%s" (include "lowwater.page" .) .Release.Namespace -}}
{{- $hosts := list (include "lowwater.page" .) $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service) -}}
{{- $hosts = append $hosts (get (urlParse .Values.dashboards.page) "host") -}}
{{- if .Values.page.ingress.enabled }}{{ $hosts = append $hosts .Values.page.ingress.host }}{{ end -}}
{{- if .Values.page.httpRoute.enabled }}{{ $hosts = concat $hosts .Values.page.httpRoute.hostnames }}{{ end -}}
{{- concat $hosts .Values.page.hosts | compact | uniq | join "," -}}
{{- end -}}

{{/* The Deployment that tracks unchanged queries. */}}
{{- define "lowwater.sidecar" -}}
{{ include "lowwater.fullname" . }}-sidecar
{{- end -}}

{{/* The Deployment and the Service of the agent of a region. */}}
{{- define "lowwater.region" -}}
{{ include "lowwater.fullname" . }}-region
{{- end -}}

{{/* The Deployment and the Service of the global authority. */}}
{{- define "lowwater.globalAuthority" -}}
{{ include "lowwater.fullname" . }}-global
{{- end -}}

{{/* The Service at which the global authority is scraped. */}}
{{- define "lowwater.globalHttp" -}}
{{ include "lowwater.globalAuthority" . }}-http
{{- end -}}

{{/* Labels that selectors use. They never change, because a StatefulSet's selector cannot. */}}
{{- define "lowwater.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Selector of the authority's pods, without the test's. */}}
{{- define "lowwater.podSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: authority
{{- end -}}

{{/* Selector of the status page's pod. */}}
{{- define "lowwater.pageSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: page
{{- end -}}

{{/* Selector of the pod that tracks unchanged queries. */}}
{{- define "lowwater.sidecarSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: sidecar
{{- end -}}

{{/* Selector of the pod of a region's agent. */}}
{{- define "lowwater.regionSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: region
{{- end -}}

{{/* Selector of the global authority's pod. */}}
{{- define "lowwater.globalSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: global
{{- end -}}

{{/* Selector of the Service at which the global authority is scraped. */}}
{{- define "lowwater.globalHttpSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: global-http
{{- end -}}

{{/* Settings that all pods but the authority's share. */}}
{{- define "lowwater.podBeside" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{ end -}}
serviceAccountName: {{ include "lowwater.serviceAccount" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Merges mappings; a later one wins. If a key were there twice, some tools would fail, and others
would silently drop one value.
*/}}
{{- define "lowwater.merged" -}}
{{- $all := dict -}}
{{- range . -}}
{{- range $key, $value := . -}}
{{- $_ := set $all $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The labels of an object: (list ROOT LABELS), where LABELS are additional. */}}
{{- define "lowwater.labels" -}}
{{- $root := first . -}}
{{- $own := dict
    "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
    "app.kubernetes.io/version" $root.Chart.AppVersion
    "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- include "lowwater.merged" (list $root.Values.commonLabels (last .) (include "lowwater.selectorLabels" $root | fromYaml) $own) -}}
{{- end -}}

{{/* The annotations of an object, with their key, if it has any: (list ROOT ANNOTATIONS). */}}
{{- define "lowwater.annotations" -}}
{{- $all := include "lowwater.merged" (list (first .).Values.commonAnnotations (last .)) -}}
{{- if ne $all "{}" -}}
annotations:
  {{- $all | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The address that a shard advertises: its name inside of the cluster, or the external one. */}}
{{- define "lowwater.advertised" -}}
{{- if .Values.external.domain -}}
$(POD_NAME).{{ .Values.external.domain }}:{{ .Values.external.port }}
{{- else -}}
$(POD_NAME).{{ include "lowwater.headless" . }}.{{ .Release.Namespace }}.svc:7420
{{- end -}}
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

{{/* "true" with Redis; empty without. */}}
{{- define "lowwater.sharded" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret }}true{{ end -}}
{{- end -}}

{{- define "lowwater.redisSecret" -}}
{{ default (printf "%s-redis" (include "lowwater.fullname" .)) .Values.redis.existingSecret }}
{{- end -}}

{{- define "lowwater.redisSecretKey" -}}
{{ ternary .Values.redis.existingSecretKey "url" (ne .Values.redis.existingSecret "") }}
{{- end -}}

{{/*
The target of a Redis URL: HOST:PORT,.../DATABASE, with Sentinel HOST:PORT,.../MASTER/DATABASE;
empty for other texts. It leaves out user, password and options. A password may have a bare ? or #,
which the authority refuses later: no part of it may be taken for a host and shown, so only a ? with
a known option begins the options.
*/}}
{{- define "lowwater.redisOfUrl" -}}
{{- $url := trim . -}}
{{- if regexMatch "^[A-Za-z+]+://" $url -}}
{{- $options := regexFind "[?](client_name|db|ssl_[a-z_]+)=.*$" $url -}}
{{- $place := regexReplaceAll "^[^:]*://(.*@)?" (trimSuffix $options $url) "" -}}
{{- $hosts := regexFind "^[^/?#]*" $place -}}
{{- $path := regexFind "^/[^?#]*" (trimPrefix $hosts $place) | trimAll "/" -}}
{{- $sentinel := hasPrefix "redis+sentinel:" $url -}}
{{- $nodes := list -}}
{{- range splitList "," $hosts -}}
{{- $port := regexFind ":[0-9]*$" . -}}
{{- $host := trimSuffix $port . | lower | default "localhost" -}}
{{- $nodes = append $nodes (printf "%s:%s" $host (trimPrefix ":" $port | default (ternary "26379" "6379" $sentinel))) -}}
{{- end -}}
{{- if $sentinel -}}
{{- $path = contains "/" $path | ternary $path (printf "%s/0" $path) -}}
{{- else -}}
{{- $path = regexFind "(^[?]|&)db=[0-9]+" $options | regexFind "[0-9]+$" | default $path | default "0" -}}
{{- end -}}
{{ join "," $nodes }}/{{ $path }}
{{- end -}}
{{- end -}}

{{/* Name of this deployment in Redis. */}}
{{- define "lowwater.deployment" -}}
{{ default (printf "%s.%s" .Release.Namespace (include "lowwater.fullname" .)) .Values.redis.deployment }}
{{- end -}}

{{/* Name of the global authority's deployment in Redis. */}}
{{- define "lowwater.globalDeployment" -}}
{{ default (printf "%s.%s" .Release.Namespace (include "lowwater.globalAuthority" .)) .Values.globalAuthority.redis.deployment }}
{{- end -}}

{{/* The claim with the journal of a single authority. */}}
{{- define "lowwater.claim" -}}
{{ default (printf "%s-data" (include "lowwater.fullname" .)) .Values.persistence.existingClaim }}
{{- end -}}

{{/* The Secret with access.toml; empty without access control. */}}
{{- define "lowwater.accessSecret" -}}
{{- if .Values.access.existingSecret -}}
{{ .Values.access.existingSecret }}
{{- else if .Values.access.config -}}
{{ include "lowwater.fullname" . }}-access
{{- end -}}
{{- end -}}

{{/* The address at which all processes listen. [::] accepts IPv4 too. */}}
{{- define "lowwater.anyAddress" -}}
{{- $service := .Values.service -}}
{{- $both := or (hasSuffix "DualStack" $service.ipFamilyPolicy) (has "IPv6" $service.ipFamilies) -}}
{{- ternary "[::]" "0.0.0.0" (or $both (has "--http=[::]:7421" .Values.extraArgs)) -}}
{{- end -}}

{{/* The IP families of the release's Services. */}}
{{- define "lowwater.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy -}}
ipFamilyPolicy: {{ . | quote }}
{{ end -}}
{{- with .Values.service.ipFamilies -}}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The address of the authority for clients in the cluster. */}}
{{- define "lowwater.host" -}}
{{ include "lowwater.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* The volume with one key of a Secret, of (list SECRET KEY). */}}
{{- define "lowwater.secretFile" -}}
secret:
  secretName: {{ first . | quote }}
  defaultMode: 0440
  items:
    - key: {{ last . | quote }}
      path: {{ last . | quote }}
{{- end -}}

{{/*
Startup and readiness probe. The health service does not ask Redis, so a short outage of Redis
neither takes the shards out of the Service nor restarts them. gRPC probes of the kubelet have no
TLS; its HTTPS probes ignore the certificate, and /healthz needs no token. An open port is not
enough: it is open before the replay ends.
*/}}
{{- define "lowwater.probe" -}}
{{ include "lowwater.probeOf" (list . 7420) }}
{{- end -}}

{{- define "lowwater.probeOf" -}}
{{- if (first .).Values.tls.existingSecret -}}
httpGet:
  path: /healthz
  port: http
  scheme: HTTPS
{{- else -}}
grpc:
  port: {{ last . }}
{{- end -}}
{{- end -}}

{{/*
Liveness probe. With TLS or access it only opens the port, because strangers may reach it: one who
holds all connections of the /healthz port, or watches and memory of the gRPC health service, could
have every shard restarted. The open port is enough, because the startup probe has seen the end of
the replay.
*/}}
{{- define "lowwater.liveness" -}}
{{- if or .Values.tls.existingSecret (include "lowwater.accessSecret" .) -}}
tcpSocket:
  port: grpc
{{- else -}}
{{ include "lowwater.probe" . }}
{{- end -}}
{{- end -}}
