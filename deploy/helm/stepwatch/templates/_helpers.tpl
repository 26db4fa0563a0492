{{- define "stepwatch.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "stepwatch.exporter" -}}
{{- printf "%s-exporter" (include "stepwatch.fullname" .) -}}
{{- end -}}

{{- define "stepwatch.alerter" -}}
{{- printf "%s-alerter" (include "stepwatch.fullname" .) -}}
{{- end -}}

{{/*
What selects the pods of a program (root, app). The name of the program is that of the job of
Prometheus, as rules/ expect.
*/}}
{{- define "stepwatch.selector" -}}
app.kubernetes.io/name: {{ .app }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* Labels of an object (root, app). */}}
{{- define "stepwatch.labels" -}}
{{ include "stepwatch.selector" . }}
app.kubernetes.io/part-of: stepwatch
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image of a program (root, of: its values). */}}
{{- define "stepwatch.image" -}}
{{- printf "%s:%s" .of.image.repository (default .root.Chart.AppVersion .of.image.tag) -}}
{{- end -}}

{{/* The service account of a program (name, of: its values). */}}
{{- define "stepwatch.serviceAccount" -}}
{{- if .of.serviceAccount.create -}}
{{- default .name .of.serviceAccount.name -}}
{{- else -}}
{{- default "default" .of.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The sets of exporters that are made, as JSON. */}}
{{- define "stepwatch.variants" -}}
{{- $variants := list -}}
{{- if .Values.exporter.enabled -}}
{{- if .Values.exporter.gpu.enabled -}}{{- $variants = append $variants "gpu" -}}{{- end -}}
{{- if .Values.exporter.cpu.enabled -}}{{- $variants = append $variants "cpu" -}}{{- end -}}
{{- end -}}
{{- toJson (dict "list" $variants) -}}
{{- end -}}

{{/* The name of the objects of a set of exporters (root, variant). */}}
{{- define "stepwatch.exporter.name" -}}
{{- include "stepwatch.exporter" .root -}}{{- if eq .variant "cpu" -}}-cpu{{- end -}}
{{- end -}}

{{/* exporter.yml of a set of exporters (root, variant). */}}
{{- define "stepwatch.exporter.config" -}}
{{- $of := .root.Values.exporter -}}
{{- $fixed := dict
      "listen" (printf ":%d" (int $of.port))
      "state_dir" "/var/lib/stepwatch-exporter"
      "ingest" (dict "socket" "/run/stepwatch/ingest.sock") -}}
{{- mergeOverwrite (deepCopy $of.config) (deepCopy (index $of .variant).config) $fixed | toYaml -}}
{{- end -}}

{{/* alerter.yml. */}}
{{- define "stepwatch.alerter.config" -}}
{{- $storage := dict "sqlite" "/var/lib/stepwatch/alerter.db" -}}
{{- with .Values.alerter.postgres -}}
{{- if .existingSecret -}}
{{- $storage = dict "postgres" (dict
      "url_file" (printf "/run/secrets/stepwatch-postgres/%s" .key)
      "pool" (int .pool)
      "advertise_url_env" "STEPWATCH_ADVERTISE_URL") -}}
{{- end -}}
{{- end -}}
{{- $fixed := dict "listen" ":9766" "storage" $storage -}}
{{- $config := mergeOverwrite (deepCopy .Values.alerter.config) $fixed -}}
{{- if and .Values.exporter.enabled (not (hasKey $config "sources")) -}}
{{- if .Values.exporter.web.existingSecret -}}
{{- fail (print "exporter.web.existingSecret is set: say in alerter.config.sources how the "
      "alerter reaches the exporters (dns, scheme, tls, basic_auth)") -}}
{{- end -}}
{{- $dns := printf "%s:%d" (include "stepwatch.exporter" .) (int .Values.exporter.port) -}}
{{- $_ := set $config "sources" (list (dict "exporters" (dict "dns" (list $dns)))) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
Who may reach a program (root, of: its values, name, monitored: whether it is scraped). A Prometheus
that the policy keeps out takes the program for dead, and pages; so does an alerter of exporters. No
peer at all is everybody.
*/}}
{{- define "stepwatch.peers" -}}
{{- $from := .of.networkPolicy.from -}}
{{- $own := eq (toJson $from) (toJson (list (dict "podSelector" dict))) -}}
{{- if $from -}}
{{- if and (eq .name "exporter") .root.Values.alerter.enabled (not $own) -}}
{{- $alerter := include "stepwatch.selector" (dict "root" .root "app" "stepwatch-alerter") | fromYaml -}}
{{- $from = append $from (dict "podSelector" (dict "matchLabels" $alerter)) -}}
{{- end -}}
{{- if and (eq .name "alerter") .root.Values.alerter.postgres.existingSecret (not $own) -}}
{{- $replicas := include "stepwatch.selector" (dict "root" .root "app" "stepwatch-alerter") | fromYaml -}}
{{- $from = append $from (dict "podSelector" (dict "matchLabels" $replicas)) -}}
{{- end -}}
{{- with .root.Values.prometheusNamespace -}}
{{- $from = append $from (dict "namespaceSelector"
      (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) -}}
{{- else -}}
{{- if and (or .monitored .root.Values.prometheusRule.enabled) $own -}}
{{- fail (print .name ".networkPolicy lets in its own namespace alone, and Prometheus is to scrape "
      "it: set prometheusNamespace to the namespace of Prometheus (or " .name ".networkPolicy.from)") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $from -}}
{{- end -}}

{{/*
Variables of the alerter (its values). Replicas reach each other at the addresses of their pods,
which are in no certificate.
*/}}
{{- define "stepwatch.alerter.env" -}}
{{- if .postgres.existingSecret }}
{{- if and (ne .web.probe "HTTP") (gt (int .replicas) 1) -}}
{{- fail (print "alerter.web.probe is " .web.probe ": replicas forward requests to the addresses of "
      "pods, which no certificate has. Leave TLS to alerter.ingress or to a service mesh") -}}
{{- end }}
{{- $own := false }}
{{- range .env }}{{ if eq (toString .name) "STEPWATCH_ADVERTISE_URL" }}{{ $own = true }}{{ end }}{{ end }}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{- if not $own }}
- {name: STEPWATCH_ADVERTISE_URL, value: "http://$(POD_IP):9766"}
{{- end }}
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Mounts of the secrets of a program (its values). */}}
{{- define "stepwatch.secretMounts" -}}
{{- range $i, $name := .secrets }}
- {name: secret-{{ $i }}, mountPath: /run/secrets/stepwatch/{{ $name }}, readOnly: true}
{{- end }}
{{- if .web.existingSecret }}
- {name: web, mountPath: /etc/stepwatch-web, readOnly: true}
{{- end }}
{{- if (default dict .postgres).existingSecret }}
- {name: postgres, mountPath: /run/secrets/stepwatch-postgres, readOnly: true}
{{- end }}
{{- end -}}

{{- define "stepwatch.secretVolumes" -}}
{{- range $i, $name := .secrets }}
- {name: secret-{{ $i }}, secret: {secretName: {{ $name | quote }}, defaultMode: 0440}}
{{- end }}
{{- if .web.existingSecret }}
- {name: web, secret: {secretName: {{ .web.existingSecret | quote }}, defaultMode: 0440}}
{{- end }}
{{- with (default dict .postgres).existingSecret }}
- {name: postgres, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- end -}}

{{/*
What a probe asks (of: the values of the program, path). With client certificates it can only
connect.
*/}}
{{- define "stepwatch.probe" -}}
{{- if eq .of.web.probe "TCP" -}}
tcpSocket: {port: metrics}
{{- else -}}
httpGet: {path: {{ .path }}, port: metrics{{ if eq .of.web.probe "HTTPS" }}, scheme: HTTPS{{ end }}}
{{- end -}}
{{- end -}}

{{/*
An endpoint of the Prometheus operator (of: the values of the program, monitor: its own values, and
fixed). What the probe has TLS for, Prometheus has too.
*/}}
{{- define "stepwatch.endpoint" -}}
{{- $endpoint := merge (dict "port" "metrics") (default dict .fixed) -}}
{{- with .monitor.interval }}{{ $_ := set $endpoint "interval" . }}{{ end -}}
{{- if ne .of.web.probe "HTTP" }}{{ $_ := set $endpoint "scheme" "https" }}{{ end -}}
{{- list (mergeOverwrite $endpoint (deepCopy .monitor.endpoint)) | toYaml -}}
{{- end -}}
