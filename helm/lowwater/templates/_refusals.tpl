{{/*
Refuses combinations of values, which values.schema.json cannot. Each message names the value and
the fix.
*/}}
{{- define "lowwater.refusals" -}}
{{- $sharded := include "lowwater.sharded" . -}}
{{- $access := include "lowwater.accessSecret" . -}}
{{- if and (gt (int .Values.replicaCount) 1) (not $sharded) -}}
{{- fail (printf "replicaCount is %d, but without Redis each replica would be an authority of its own, with other watermarks: set redis.url or redis.existingSecret, or replicaCount: 1" (int .Values.replicaCount)) -}}
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
{{- if and $access .Values.page.enabled (not .Values.page.tokenSecret.name) -}}
{{- fail "with access the status page needs a token: set page.tokenSecret.name, a Secret with the token of a principal that may read everything, or page.enabled: false" -}}
{{- end -}}
{{- if .Values.sidecar.enabled -}}
{{- if not .Values.sidecar.image.repository -}}
{{- fail "the sidecar needs an image of your own: set sidecar.image.repository, one with lowwater-spark, and with PySpark and Java where it reads Kafka, tables or URIs" -}}
{{- end -}}
{{- if not (or (contains "[[query]]" .Values.sidecar.queries) (contains "[[pipeline]]" .Values.sidecar.queries)) -}}
{{- fail "sidecar.queries has no table [[query]] or [[pipeline]]: give it the file of declarations, which lowwater-spark describe CHECKPOINT prints" -}}
{{- end -}}
{{- if and $access (not .Values.sidecar.tokenSecret.name) -}}
{{- fail "with access the sidecar needs a token: set sidecar.tokenSecret.name, a Secret with the token of a principal that may report for its queries and read what they read" -}}
{{- end -}}
{{- range .Values.sidecar.extraEnv -}}
{{- if has .name (list "HOME" "LOWWATER_ADDRESS" "LOWWATER_CA" "LOWWATER_CERT" "LOWWATER_KEY" "LOWWATER_TOKEN" "LOWWATER_TOKEN_FILE") -}}
{{- fail (printf "sidecar.extraEnv has %s, which the chart sets itself: use the values tls and sidecar.tokenSecret" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.sidecar.extraVolumes -}}
{{- if has .name (list "tmp" "state" "queries" "tls" "token") -}}
{{- fail (printf "sidecar.extraVolumes has %s, which is a volume of the chart: give it another name" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.region.enabled -}}
{{- if not .Values.region.name -}}
{{- fail "region.name is empty: give it the name of this region, as the files of all regions have it" -}}
{{- end -}}
{{- if not (regexMatch "(?m)^[[][[]reference[]][]]" .Values.region.references) -}}
{{- fail "region.references has no line that begins with [[reference]]: give it the file of references, which lowwater region --help shows" -}}
{{- end -}}
{{- if hasPrefix " " .Values.region.references -}}
{{- fail "region.references begins with a space: indent none of its lines" -}}
{{- end -}}
{{- if eq (int .Values.replicaCount) 0 -}}
{{- fail "the agent of a region speaks for the authority beside it: with replicaCount: 0 set region.enabled: false" -}}
{{- end -}}
{{- if not (or .Values.region.globalAddress .Values.globalAuthority.enabled) -}}
{{- fail "the region needs a global authority: set region.globalAddress, or globalAuthority.enabled in one release of all" -}}
{{- end -}}
{{- if not .Values.region.pipelineTokenSecret.name -}}
{{- fail "pipelines present a token to the agent of a region: set region.pipelineTokenSecret.name, a Secret with what lowwater access token prints" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.pipelines) -}}
{{- fail "the agent of a region is for pipelines, and not for all clients of gRPC: name their pods in networkPolicy.pipelines" -}}
{{- end -}}
{{- if and $access (not .Values.region.tokenSecret.name) -}}
{{- fail "with access the region needs a token: set region.tokenSecret.name, a Secret with the token of a principal that may read, report and operate on its own computations and on global/*" -}}
{{- end -}}
{{- end -}}
{{- if .Values.globalAuthority.enabled -}}
{{- if and .Values.globalAuthority.accessSecret .Values.region.enabled (not .Values.region.globalAddress) (not .Values.region.tokenSecret.name) (not .Values.region.globalTokenSecret.name) -}}
{{- fail "with globalAuthority.accessSecret the region of this release needs a token: set region.globalTokenSecret.name, a Secret with the token of a principal that may report there" -}}
{{- end -}}
{{- if and $sharded .Values.globalAuthority.redis.existingSecret (eq (include "lowwater.globalDeployment" .) (include "lowwater.deployment" .)) -}}
{{- fail "globalAuthority.redis.deployment is that of the shards: in one Redis both would have one journal, so give it another name" -}}
{{- end -}}
{{- if and .Values.globalAuthority.accessSecret .Values.serviceMonitor.enabled (not .Values.serviceMonitor.tokenSecret.name) -}}
{{- fail "with globalAuthority.accessSecret a scrape needs a token: set serviceMonitor.tokenSecret.name, a Secret with the token of a principal that has metrics = true there, too" -}}
{{- end -}}
{{- end -}}
{{- /*
Only 0.0.0.0 and [::] are allowed: probes and clients use the pod's own address. A message must not
repeat $(NAME): it may stand for a password.
*/ -}}
{{- $allowed := list "--listen=(0[.]0[.]0[.]0|[[]::[]]):7420" "--http=(0[.]0[.]0[.]0|[[]::[]]):7421" "--dead-after=[0-9]+([.][0-9]+)?" "--reflection" "--verbose" -}}
{{- range $at, $argument := .Values.extraArgs -}}
{{- $flag := first (splitList "=" $argument) -}}
{{- if has $flag (list "--store" "--data" "--deployment" "--advertise" "--log-format" "--tls-cert" "--tls-key" "--tls-client-ca" "--peer-ca" "--access" "--promises" "--page" "--page-host" "--expect-deployment" "--limit") -}}
{{- fail (printf "extraArgs has %s, which the chart sets itself or leaves off: use the values redis, persistence, tls, access, limits, promises, page, expectDeployment and logFormat" $flag) -}}
{{- end -}}
{{- /*
An abbreviation, or a word without a flag, may be one of these flags. The message does not repeat
the word: it may be a password.
*/ -}}
{{- if not (regexMatch (printf "^(%s)$" (join "|" $allowed)) $argument) -}}
{{- fail (printf "extraArgs[%d] is none of --listen=[::]:7420, --http=[::]:7421, the same with 0.0.0.0, --dead-after=SECONDS, --reflection and --verbose: write flags in full, and their value behind = in the same string; probes and Services ask for the pod's own address, at the ports 7420 and 7421" $at) -}}
{{- end -}}
{{- if hasPrefix "--dead-after=" $argument -}}
{{- $seconds := trimPrefix "--dead-after=" $argument | float64 -}}
{{- if or (lt $seconds 0.2) (gt $seconds 600.0) -}}
{{- fail (printf "extraArgs[%d]: --dead-after is from 0.2 to 600 seconds, and the same for all shards" $at) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.external.domain (not $sharded) -}}
{{- fail "external.domain gives each of several shards a name, and without Redis there is one authority: expose its Service by service.type: LoadBalancer" -}}
{{- end -}}
{{- if and .Values.page.ingress.enabled (not .Values.page.ingress.host) -}}
{{- fail "page.ingress needs a host of its own, since the page is at its root: set page.ingress.host" -}}
{{- end -}}
{{- if .Values.page.httpRoute.enabled -}}
{{- if not (and .Values.page.httpRoute.parentRefs .Values.page.httpRoute.hostnames) -}}
{{- fail "page.httpRoute needs a gateway, and a host of its own, since the page is at its root: set page.httpRoute.parentRefs and page.httpRoute.hostnames" -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.page.ingress.enabled .Values.page.httpRoute.enabled) (not .Values.page.enabled) -}}
{{- fail "page.ingress and page.httpRoute lead to the status page, and page.enabled is false: set it, or leave them off" -}}
{{- end -}}
{{- range .Values.extraContainers -}}
{{- if eq .name "authority" -}}
{{- fail "extraContainers has authority, which is the chart's: give it another name" -}}
{{- end -}}
{{- end -}}
{{- range $name, $annotations := dict "commonAnnotations" .Values.commonAnnotations "service.annotations" .Values.service.annotations "globalAuthority.service.annotations" .Values.globalAuthority.service.annotations "dashboards.annotations" .Values.dashboards.annotations -}}
{{- range list "helm.sh/resource-policy" "helm.sh/hook" -}}
{{- if hasKey $annotations . -}}
{{- fail (printf "%s has %s, by which helm would treat objects otherwise than the chart means: leave it out" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "LOWWATER_STORE" "LOWWATER_STORE_FILE" "LOWWATER_PEER_TOKEN" "LOWWATER_PEER_TOKEN_FILE" "POD_NAME") -}}
{{- fail (printf "extraEnv has %s, which the chart sets itself: use redis.url or redis.existingSecret for the store, and peerToken.existingSecret" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "tmp" "data" "tls" "access" "promises" "redis-url" "peer-token") -}}
{{- fail (printf "extraVolumes has %s, which is a volume of the chart: give it another name" .name) -}}
{{- end -}}
{{- end -}}
{{- range $value, $labels := dict
    "commonLabels" .Values.commonLabels
    "podLabels" .Values.podLabels
    "serviceMonitor.labels" .Values.serviceMonitor.labels
    "prometheusRule.labels" .Values.prometheusRule.labels
    "dashboards.labels" .Values.dashboards.labels -}}
{{- range $label, $_ := $labels -}}
{{- if has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component") -}}
{{- fail (printf "%s has %s, by which the Services find the pods: use nameOverride, or another label" $value $label) -}}
{{- end -}}
{{- if has $label (list "helm.sh/chart" "app.kubernetes.io/version" "app.kubernetes.io/managed-by") -}}
{{- fail (printf "%s has %s, which the chart sets itself: use another label" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.persistence.annotations "helm.sh/resource-policy" -}}
{{- fail "persistence.annotations has helm.sh/resource-policy, which the chart sets itself, to keep: leave it out" -}}
{{- end -}}
{{- range list "checksum/redis" "checksum/queries" "checksum/references" -}}
{{- if hasKey $.Values.podAnnotations . -}}
{{- fail (printf "podAnnotations has %s, which the chart sets itself: use another annotation" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.redis.url -}}
{{- range include "lowwater.redisOfUrl" .Values.redis.url | splitList "/" | first | splitList "," -}}
{{- $port := regexFind "[0-9]+$" . -}}
{{- if not (has $port (toStrings $.Values.networkPolicy.redisPorts)) -}}
{{- fail (printf "redis.url has the port %s, and the network policy lets the shards reach others only: add it to networkPolicy.redisPorts" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $name := include "lowwater.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) -}}
{{- fail (printf "%s is no name for a Service, which begins with a letter and has letters, digits and - alone: set fullnameOverride, or call the release otherwise" $name) -}}
{{- end -}}
{{- end -}}
