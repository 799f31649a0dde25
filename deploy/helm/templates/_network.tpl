{{/* Who opens connections to whom, and to which ports of theirs; the policies refuse all else. A range is first-last, [] is every port. */}}
{{- define "forebay.edges" -}}
{{- $ports := include "forebay.ports" . | fromYaml -}}
{{- $doors := include "forebay.doors" . | fromYaml -}}
hub:
  proxy: [{{ index $ports "proxy-api" }}]
  pool: [{{ $ports.pool }}]
  billing: [{{ $ports.billing }}]
  dashboards: [{{ $ports.dashboards }}]
  edge: [{{ $ports.edge }}]
  notebook: [{{ $ports.notebook }}]
proxy:
  hub: [{{ $ports.hub }}]
  pool: [{{ $ports.pool }}]
  billing: [{{ $ports.billing }}]
  dashboards: [{{ $ports.dashboards }}]
  edge: [{{ $ports.edge }}]
  notebook: [{{ $ports.notebook }}]
pool:
  hub: [{{ $ports.hub }}]
  billing: [{{ $ports.billing }}]
  ray-head: []
  ray-worker: []
billing:
  hub: [{{ $ports.hub }}]
dashboards:
  hub: [{{ $ports.hub }}]
  pool: [{{ $ports.pool }}]
  billing: [{{ $ports.billing }}]
edge:
  hub: [{{ $ports.hub }}]
  pool: [{{ $ports.pool }}]
  ray-worker: [{{ $doors.first }}-{{ $doors.last }}]
ray-head:
  pool: []
  ray-worker: []
ray-worker:
  pool: []
  ray-head: []
  ray-worker: []
notebook:
  hub: [{{ $ports.hub }}]
  pool: [{{ $ports.pool }}]
  billing: [{{ $ports.billing }}]
  ray-worker: [{{ $doors.first }}-{{ $doors.last }}]
backup: {}
{{- end }}

{{/* What a policy says of ports; nothing, which is all of them, for an empty list. */}}
{{- define "forebay.policyPorts" -}}
{{- with . }}
ports:
  {{- range . }}
  {{- $range := splitList "-" (toString .) }}
  - {protocol: TCP, port: {{ first $range }}{{ if rest $range }}, endPort: {{ last $range }}{{ end }}}
  {{- end }}
{{- end }}
{{- end }}

{{/* Beyond the pods of this chart: DNS, the database, the API of Kubernetes, and for billing and sign-in the world outside. */}}
{{- define "forebay.egressBeyond" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $database := .root.Values.database -}}
- to:
    {{- toYaml $policy.names | nindent 4 }}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- if has .part (list "hub" "pool" "billing" "backup") }}
- to: [{ipBlock: {cidr: {{ $database.cidr }}}}]
  ports: [{protocol: TCP, port: {{ $database.port }}}]
{{- end }}
{{- with .root.Values.ray.redis }}
{{- if and .address (eq $.part "ray-head") }}
- to: [{ipBlock: {cidr: {{ .cidr }}}}]
  ports: [{protocol: TCP, port: {{ splitList ":" .address | last }}}]
{{- end }}
{{- end }}
{{- if or (eq .part "hub") (and (eq .part "ray-head") (include "forebay.elastic" .root)) }}
- to: [{ipBlock: {cidr: {{ $policy.kubernetesApi.cidr }}}}]
  {{- include "forebay.policyPorts" $policy.kubernetesApi.ports | nindent 2 }}
{{- end }}
{{- if has .part (list "hub" "billing") }}
- to:
    - ipBlock: {cidr: {{ $policy.outside.cidr }}, except: {{ toJson $policy.outside.except }}}
  {{- include "forebay.policyPorts" $policy.outside.ports | nindent 2 }}
{{- end }}
{{- if eq .part "notebook" }}
{{- with .root.Values.singleuser.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
