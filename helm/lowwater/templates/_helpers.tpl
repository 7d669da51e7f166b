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

{{/* The Deployment and the Service of the status page. */}}
{{- define "lowwater.page" -}}
{{ include "lowwater.fullname" . }}-page
{{- end -}}

{{/* By which names browsers reach it: its Service's, the links to it, the Ingress's, the HTTPRoute's, and `page.hosts`. */}}
{{- define "lowwater.pageHosts" -}}
{{- $service := printf "%s.%s" (include "lowwater.page" .) .Release.Namespace -}}
{{- $hosts := list (include "lowwater.page" .) $service (printf "%s.svc" $service) (printf "%s.svc.cluster.local" $service) -}}
{{- $hosts = append $hosts (get (urlParse .Values.dashboards.page) "host") -}}
{{- if .Values.page.ingress.enabled }}{{ $hosts = append $hosts .Values.page.ingress.host }}{{ end -}}
{{- if .Values.page.httpRoute.enabled }}{{ $hosts = concat $hosts .Values.page.httpRoute.hostnames }}{{ end -}}
{{- concat $hosts .Values.page.hosts | compact | uniq | join "," -}}
{{- end -}}

{{/* The Deployment that tracks queries which nobody changes. */}}
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

{{/* The Service at which that is scraped. */}}
{{- define "lowwater.globalHttp" -}}
{{ include "lowwater.globalAuthority" . }}-http
{{- end -}}

{{/* What never changes, because a StatefulSet's selector cannot. */}}
{{- define "lowwater.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The pods of the authority: not those of the test. */}}
{{- define "lowwater.podSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: authority
{{- end -}}

{{/* The pod of the status page. */}}
{{- define "lowwater.pageSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: page
{{- end -}}

{{/* The pod that tracks queries which nobody changes. */}}
{{- define "lowwater.sidecarSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: sidecar
{{- end -}}

{{/* The agent of a region. */}}
{{- define "lowwater.regionSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: region
{{- end -}}

{{/* The pod of the global authority. */}}
{{- define "lowwater.globalSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: global
{{- end -}}

{{/* Its labels. */}}
{{- define "lowwater.globalHttpSelector" -}}
{{ include "lowwater.selectorLabels" . }}
app.kubernetes.io/component: global-http
{{- end -}}

{{/* What the pods beside the authority's have in common. */}}
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

{{/* Several mappings as one, of which a later one counts more: a key that stands there twice is an error to some, and silence to others. */}}
{{- define "lowwater.merged" -}}
{{- $all := dict -}}
{{- range . -}}
{{- range $key, $value := . -}}
{{- $_ := set $all $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The labels of an object: (list ROOT LABELS), where LABELS are those that this object has besides. */}}
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

{{/* How a shard calls itself, and others call it: its name inside of the cluster, or the one that leads to it from outside. */}}
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

{{/* Empty without Redis. */}}
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
What a Redis URL leads to, however it is written: HOST:PORT,.../DATABASE, with Sentinel HOST:PORT,.../MASTER/DATABASE. It has no user, no password and no
other options, and is empty for what is no URL. Not every ? begins options, and no # ends it: the authority refuses both bare in a password, of which
nothing may be taken for a host and shown.
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

{{/* Which deployment of that Redis. */}}
{{- define "lowwater.deployment" -}}
{{ default (printf "%s.%s" .Release.Namespace (include "lowwater.fullname" .)) .Values.redis.deployment }}
{{- end -}}

{{/* Which deployment of its Redis the global authority is. */}}
{{- define "lowwater.globalDeployment" -}}
{{ default (printf "%s.%s" .Release.Namespace (include "lowwater.globalAuthority" .)) .Values.globalAuthority.redis.deployment }}
{{- end -}}

{{/* The claim with the journal of the one authority. */}}
{{- define "lowwater.claim" -}}
{{ default (printf "%s-data" (include "lowwater.fullname" .)) .Values.persistence.existingClaim }}
{{- end -}}

{{/* Empty without access control. */}}
{{- define "lowwater.accessSecret" -}}
{{- if .Values.access.existingSecret -}}
{{ .Values.access.existingSecret }}
{{- else if .Values.access.config -}}
{{ include "lowwater.fullname" . }}-access
{{- end -}}
{{- end -}}

{{/* Where all processes listen. On [::] they take IPv4 as well. */}}
{{- define "lowwater.anyAddress" -}}
{{- $service := .Values.service -}}
{{- $both := or (hasSuffix "DualStack" $service.ipFamilyPolicy) (has "IPv6" $service.ipFamilies) -}}
{{- ternary "[::]" "0.0.0.0" (or $both (has "--http=[::]:7421" .Values.extraArgs)) -}}
{{- end -}}

{{/* By which families of addresses the Services of the release are reached. */}}
{{- define "lowwater.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy -}}
ipFamilyPolicy: {{ . | quote }}
{{ end -}}
{{- with .Values.service.ipFamilies -}}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Where clients in the cluster reach the authority. */}}
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
Who is asked whether the authority has started and is ready. Its health service does not look at Redis, so that a Redis that is away for
a moment neither takes the shards out of the Service nor restarts them. The kubelet's gRPC probes speak no TLS; over HTTPS it asks without
looking at the certificate, and /healthz wants no token. A look at the port alone would not do for these: it is open before the replay ends.
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
Who is asked whether it still runs. With TLS or access only the port, where it may be reached by some who may do nothing: who holds all connections that
the port of /healthz takes would have every shard restarted by way of /healthz. Over gRPC health checks have no places that all hosts share, but callers without a
token hold watches and memory there, perhaps from the kubelet's own address. That the replay has ended is known by then: liveness is asked after the start.
*/}}
{{- define "lowwater.liveness" -}}
{{- if or .Values.tls.existingSecret (include "lowwater.accessSecret" .) -}}
tcpSocket:
  port: grpc
{{- else -}}
{{ include "lowwater.probe" . }}
{{- end -}}
{{- end -}}
