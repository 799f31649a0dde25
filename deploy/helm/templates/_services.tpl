{{/* What JupyterHub would tell a service that it starts itself, the service's own secrets, and where the others are. */}}
{{- define "forebay.serviceEnvironment" -}}
{{- $port := index (include "forebay.ports" .root | fromYaml) .part | int -}}
{{- $own := printf "FOREBAY_%s" (upper .part) -}}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- {name: JUPYTERHUB_SERVICE_NAME, value: {{ .part }}}
- {name: JUPYTERHUB_SERVICE_PREFIX, value: /services/{{ .part }}/}
- {name: JUPYTERHUB_SERVICE_URL, value: "http://$(POD_IP):{{ $port }}"}
- {name: JUPYTERHUB_API_URL, value: {{ include "forebay.hubUrl" .root }}/hub/api}
{{ include "forebay.secret" (dict "root" .root "name" "JUPYTERHUB_API_TOKEN" "key" (printf "%s-token" .part)) }}
{{ include "forebay.secret" (dict "root" .root "name" (printf "%s_METRICS_TOKEN" $own) "key" "metrics-token") }}
- {name: {{ $own }}_LOG_FORMAT, value: {{ .root.Values.logFormat }}}
{{- if has .part (list "dashboards" "edge") }}
- {name: {{ $own }}_POOL_URL, value: {{ include "forebay.url" (dict "root" .root "part" "pool") }}}
{{- else }}
{{ include "forebay.database" . }}
{{- end }}
{{- if eq .part "dashboards" }}
- {name: {{ $own }}_NAME, value: {{ .root.Values.look.name | quote }}}
{{- with .root.Values.look.help_url }}
- {name: {{ $own }}_HELP_URL, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- if has .part (list "pool" "dashboards") }}
- {name: {{ $own }}_BILLING_URL, value: {{ include "forebay.url" (dict "root" .root "part" "billing") }}}
{{- end }}
{{- end }}

{{/* Where the pools' volume is for files of jobs. Their folder lies in it: its root is not the pool's own, and may have a lost+found. */}}
{{- define "forebay.jobFilesVolume" -}}
/var/lib/forebay/job-files
{{- end }}

{{/* What the pool is told of the cluster: the devices are those of the worker groups, and all pools have one address, that of the one
     which leads. Several pools leave their workers to the next one when they end. */}}
{{- define "forebay.poolSettings" -}}
{{- $address := include "forebay.url" (dict "root" $ "part" "pool") -}}
launcher: ray
advertise_url: {{ $address }}
replicas:
  {{- range until (int .Values.pool.replicas) }}
  - {{ $address }}
  {{- end }}
ray_address: {{ include "forebay.rayAddress" . }}
{{- if .Values.ray.spillVolume }}
spill_dir: {{ include "forebay.spillDir" . }}
{{- end }}
{{- if .Values.pool.jobFiles.enabled }}
job_files_dir: {{ include "forebay.jobFilesVolume" . }}/members
{{- end }}
worker_python: /opt/forebay/bin/python
{{- with .Values.ray.workerGroups }}
devices:
  {{- range . }}
  - kind: {{ .kind }}
    model: {{ .model | quote }}
    memory: {{ .memory | quote }}
    count: {{ .devices }}
    {{- if .spot }}
    spot: true
    {{- end }}
    {{- if .maxReplicas }}
    nodes_min: {{ ternary .minReplicas .replicas (hasKey . "minReplicas") }}
    nodes_max: {{ .maxReplicas }}
    {{- with .startSeconds }}
    start_seconds: {{ . }}
    {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}
