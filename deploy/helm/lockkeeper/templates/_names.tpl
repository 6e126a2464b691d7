{{- /* A name that Kubernetes allows, of the Kafka user of a role of the job, as `lockkeeper topics manifest --users` writes it. */ -}}
{{- define "lockkeeper.user" -}}
{{- $name := regexReplaceAll "[^a-z0-9.-]+" (lower .) "-" -}}
{{- regexReplaceAll "-*\\.[.-]*" $name "." | trimAll "-." -}}
{{- end -}}
