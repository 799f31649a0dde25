{{/* Variables of the hub, and the keys of the chart's Secret that they are. */}}
{{- define "forebay.hubSecrets" -}}
JPY_COOKIE_SECRET: hub-cookie-secret
JUPYTERHUB_CRYPT_KEY: hub-crypt-key
CONFIGPROXY_AUTH_TOKEN: proxy-token
FOREBAY_HUB_METRICS_TOKEN: metrics-token
FOREBAY_HUB_TOKEN_OF_POOL: pool-token
FOREBAY_HUB_TOKEN_OF_BILLING: billing-token
FOREBAY_HUB_TOKEN_OF_DASHBOARDS: dashboards-token
FOREBAY_HUB_TOKEN_OF_EDGE: edge-token
{{- end }}

{{/* chart.json, which forebay_hub.kubernetes reads: where the services are, and traits of JupyterHub, proxy and spawner. */}}
{{- define "forebay.hubChart" -}}
{{- $ports := include "forebay.ports" . | fromYaml -}}
services:
  {{- range list "pool" "billing" "dashboards" "edge" }}
  {{ . }}: {{ trimSuffix (printf "/services/%s/" .) (include "forebay.url" (dict "root" $ "part" .)) }}
  {{- end }}
traits:
  {{- $traits := dict
    "JupyterHub" (dict
      "public_url" (include "forebay.publicUrl" .)
      "hub_bind_url" (printf "http://0.0.0.0:%v" $ports.hub)
      "hub_connect_url" (include "forebay.hubUrl" .))
    "ConfigurableHTTPProxy" (dict "api_url" (printf "http://%s:%v" (include "forebay.name" (dict "root" $ "part" "proxy-api")) (index $ports "proxy-api")))
    "VirtualGpuMixin" (dict
      "pool_url" (include "forebay.url" (dict "root" $ "part" "pool"))
      "billing_url" (include "forebay.url" (dict "root" $ "part" "billing")))
    "KubeSpawner" (include "forebay.spawner" . | fromYaml) }}
  {{- mergeOverwrite $traits (deepCopy .Values.hub.config) | toYaml | nindent 2 }}
{{- end }}

{{/* Traits of KubeSpawner: the pods of notebooks. */}}
{{- define "forebay.spawner" -}}
{{- $user := .Values.singleuser -}}
image: {{ include "forebay.image" (dict "root" $ "role" "notebook" "image" $user.image) }}
image_pull_policy: {{ .Values.image.pullPolicy }}
image_pull_secrets: {{ .Values.image.pullSecrets | toJson }}
cmd: [python, -I, -m, forebay.toolkit.environments, jupyterhub-singleuser]
default_url: /lab
start_timeout: 300
http_timeout: 60
pod_name_template: "{{ .Release.Name }}-notebook-{user_server}"
pvc_name_template: "{{ .Release.Name }}-home-{username}"
component_label: notebook
common_labels:
  app.kubernetes.io/name: forebay
  app.kubernetes.io/instance: {{ .Release.Name }}
  app.kubernetes.io/managed-by: kubespawner
pod_security_context:
  {{- include "forebay.podSecurity" . | nindent 2 }}
container_security_context:
  {{- include "forebay.containerSecurity" . | nindent 2 }}
automount_service_account_token: false
extra_pod_config: {enableServiceLinks: false}
cpu_guarantee: {{ $user.cpu.guarantee }}
cpu_limit: {{ $user.cpu.limit }}
mem_guarantee: {{ $user.memory.guarantee }}
mem_limit: {{ $user.memory.limit }}
storage_pvc_ensure: true
storage_capacity: {{ $user.storage.capacity }}
storage_access_modes: {{ $user.storage.accessModes | toJson }}
{{- with $user.storage.storageClass }}
storage_class: {{ . }}
{{- end }}
volumes:
  - {name: home, persistentVolumeClaim: {claimName: "{{ .Release.Name }}-home-{username}"}}
  - {name: tmp, emptyDir: {}}
  {{- with $user.storage.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volume_mounts:
  - {name: home, mountPath: /home/notebook}
  - {name: tmp, mountPath: /tmp}
  {{- with $user.storage.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
node_selector: {{ $user.nodeSelector | toJson }}
tolerations: {{ $user.extraTolerations | toJson }}
environment: {{ $user.extraEnv | toJson }}
priority_class_name: {{ $user.priorityClassName | quote }}
extra_labels: {{ $user.extraLabels | toJson }}
extra_annotations: {{ $user.extraAnnotations | toJson }}
init_containers: {{ $user.initContainers | toJson }}
extra_containers: {{ $user.extraContainers | toJson }}
profile_list: {{ $user.profileList | toJson }}
{{- range $kind, $place := dict "nodeAffinity" "node_affinity" "podAffinity" "pod_affinity" "podAntiAffinity" "pod_anti_affinity" }}
{{- with get $user.affinity $kind }}
{{ $place }}_required: {{ .requiredDuringSchedulingIgnoredDuringExecution | default list | toJson }}
{{ $place }}_preferred: {{ .preferredDuringSchedulingIgnoredDuringExecution | default list | toJson }}
{{- end }}
{{- end }}
{{- end }}
