{{- /* A pod's variables: `own`, a text, in its order, for some refer to earlier ones; each that `more` names again is that one. */ -}}
{{- define "lockkeeper.variables" -}}
{{- $own := fromYamlArray .own -}}
{{- $names := list -}}
{{- range $own }}{{ $names = append $names .name }}{{ end -}}
{{- $again := dict -}}
{{- $added := list -}}
{{- range .more -}}
{{- if has .name $names }}{{ $_ := set $again .name . }}{{ else }}{{ $added = append $added . }}{{ end -}}
{{- end -}}
{{- $all := list -}}
{{- range $own }}{{ $all = append $all (get $again .name | default .) }}{{ end -}}
{{- toYaml (concat $all $added) -}}
{{- end -}}
