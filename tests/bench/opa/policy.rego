package bench

# Statements of the principal's groups; a deny wins over every allow.
default allow := false

allow if {
	some group in input.groups
	some role in data.groups[group]
	some statement in data.roles[role]
	statement.allow
	applies(statement)
	not denied
}

denied if {
	some group in input.groups
	some role in data.groups[group]
	some statement in data.roles[role]
	not statement.allow
	applies(statement)
}

applies(statement) if {
	some action in statement.actions
	matches(action, input.action)
	some resource in statement.resources
	matches(resource, input.resource)
}

matches(pattern, text) if pattern.text == text

matches(pattern, text) if {
	pattern.prefix
	startswith(text, pattern.text)
}

matches(pattern, text) if {
	count(pattern.segments) > 0
	parts := split(text, "/")
	every i, segment in pattern.segments {
		segment_matches(segment, parts[i])
	}
}

segment_matches(segment, part) if segment == part

segment_matches(segment, part) if {
	endswith(segment, "*")
	startswith(part, trim_suffix(segment, "*"))
}
