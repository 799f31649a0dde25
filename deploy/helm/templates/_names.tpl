{{/* Names, labels, and what all pods have in common. $ is the root; a part is hub, proxy, pool, billing, dashboards, edge, backup, ray or notebook. */}}

{{- define "forebay.name" -}}
{{ printf "%s-%s" .root.Release.Name .part }}
{{- end }}

{{- define "forebay.selector" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "forebay.metadata" -}}
name: {{ include "forebay.name" . }}
labels:
  {{- include "forebay.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "forebay.image" -}}
{{- $ours := printf "%s%s:%s" .root.Values.image.prefix .role (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{ .image | default (include "forebay.pinned" (dict "image" $ours "digest" (get .root.Values.image.digests (.role | default "")))) }}
{{- end }}

{{/* An image, bound to one build of it where its digest is given. */}}
{{- define "forebay.pinned" -}}
{{ .image }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "forebay.secretName" -}}
{{ .Values.secretName | default (printf "%s-secrets" .Release.Name) }}
{{- end }}

{{- define "forebay.databaseSecretName" -}}
{{ .Values.database.secretName | default (include "forebay.secretName" .) }}
{{- end }}

{{/* Where each service listens. Prefixes are JupyterHub's: /services/NAME/. */}}
{{- define "forebay.ports" -}}
{hub: 8081, proxy: 8000, proxy-api: 8001, pool: 8091, billing: 8712, dashboards: 8783, edge: 8784, notebook: 8888}
{{- end }}

{{- define "forebay.url" -}}
{{- $port := index (include "forebay.ports" .root | fromYaml) .part | int -}}
http://{{ include "forebay.name" . }}:{{ $port }}/services/{{ .part }}/
{{- end }}

{{- define "forebay.hubUrl" -}}
http://{{ .Release.Name }}-hub:{{ (include "forebay.ports" . | fromYaml).hub }}
{{- end }}

{{- define "forebay.publicUrl" -}}
{{ ternary "https" "http" (ne .Values.certificate.secretName "") }}://{{ required "host: say by which name browsers reach the installation" .Values.host }}/
{{- end }}

{{/* Pod Security Standards, restricted. */}}
{{- define "forebay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "forebay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "forebay.container" -}}
image: {{ include "forebay.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "forebay.containerSecurity" . | nindent 2 }}
{{- end }}

{{/* Labels and annotations of pods: the chart's own, and those of the part's values. */}}
{{- define "forebay.podMetadata" -}}
labels:
  {{- include "forebay.selector" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .values.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) (.values.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* On which hosts the pods of a part run, and which of them give way. */}}
{{- define "forebay.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "forebay.pod" -}}
{{- with include "forebay.placement" .values }}
{{- . }}
{{ end -}}
automountServiceAccountToken: {{ .api | default false }}
enableServiceLinks: false  # their variables, such as FOREBAY_POOL_PORT, would be taken for settings of ours
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- include "forebay.podSecurity" . | nindent 2 }}
{{- end }}

{{/* A variable that is a key of the chart's Secret. */}}
{{- define "forebay.secret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ include "forebay.secretName" .root }}, key: {{ .key }}}
{{- end }}

{{- define "forebay.database" -}}
- name: FOREBAY_{{ .part | upper }}_DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ include "forebay.databaseSecretName" .root }}, key: {{ .part }}-database-url}
{{- end }}
