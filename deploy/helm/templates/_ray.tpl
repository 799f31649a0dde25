{{- define "forebay.rayAddress" -}}
{{ .Release.Name }}-ray-head-svc:6379
{{- end }}

{{/* The worker groups whose nodes come and go; empty where there is none. */}}
{{- define "forebay.elastic" -}}
{{- range .Values.ray.workerGroups }}{{ if .maxReplicas }}{{ .name }} {{ end }}{{ end }}
{{- end }}

{{/* A host's devices are one node's, which is named by the host. */}}
{{- define "forebay.onePerHost" -}}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "forebay.selector" (dict "root" .root "part" "ray-worker") | nindent 10 }}
{{- end }}

{{/* Where parked tensors go that find no room in host memory, if there is a volume for them. */}}
{{- define "forebay.spillDir" -}}
/var/lib/forebay/spill
{{- end }}

{{/* Ports of all that listens on a node of Ray, none of them among the doors of workers. */}}
{{- define "forebay.rayPorts" -}}
node-manager-port: "6380"
object-manager-port: "6381"
runtime-env-agent-port: "6382"
dashboard-agent-grpc-port: "6383"
dashboard-agent-listen-port: "52365"
metrics-export-port: "8080"
min-worker-port: "10002"
max-worker-port: "19999"
disable-usage-stats: "true"
{{- end }}

{{/* Ray's own programs write JSON where the services do. */}}
{{- define "forebay.rayLogs" -}}
- {name: RAY_BACKEND_LOG_JSON, value: {{ ternary "1" "0" (eq .Values.logFormat "json") | quote }}}
{{- end }}

{{/* Where workers listen for notebooks: ports that the kernel gives to who asks for any. */}}
{{- define "forebay.doors" -}}
{first: 30000, last: 34999}
{{- end }}

{{/* How long who uses Ray waits for a head that comes back; KubeRay says the same to the nodes that it makes. */}}
{{- define "forebay.rayPatience" -}}
{{- if .Values.ray.redis.address }}
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "600"}
{{- end }}
{{- end }}

{{/* The pool reaches the cluster through a node of Ray beside it, on which nothing is placed. */}}
{{- define "forebay.rayOfPool" -}}
- name: ray
  restartPolicy: Always
  {{- include "forebay.container" (dict "root" . "role" "node") | nindent 2 }}
  command:
    - ray
    - start
    - --block
    - --address={{ include "forebay.rayAddress" . }}
    - --node-ip-address=$(POD_IP)
    - --num-cpus=0
    - --num-gpus=0
    - --object-store-memory=100000000
    {{- range $name, $value := include "forebay.rayPorts" . | fromYaml }}
    - --{{ $name }}{{ ternary "" (printf "=%s" $value) (eq $value "true") }}
    {{- end }}
  env:
    {{- include "forebay.rayLogs" . | nindent 4 }}
    - name: POD_IP
      valueFrom:
        fieldRef: {fieldPath: status.podIP}
    {{- include "forebay.rayPatience" . | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 512Mi}
    limits: {memory: 1Gi}
  startupProbe:
    httpGet: {path: /api/local_raylet_healthz, port: 52365}
    periodSeconds: 2
    failureThreshold: 150
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: shm, mountPath: /dev/shm}
{{- end }}
