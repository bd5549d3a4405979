package process

import (
	"slices"
	"strings"
)

// Environ joins lists of "KEY=value" pairs into one in which each key is there
// once, with its last value, in the order of their first appearance.
func Environ(lists ...[]string) []string {
	at := map[string]int{}
	var env []string
	for _, kv := range slices.Concat(lists...) {
		key, _, _ := strings.Cut(kv, "=")
		if i, ok := at[key]; ok {
			env[i] = kv
			continue
		}
		at[key] = len(env)
		env = append(env, kv)
	}
	return env
}

// Lookup returns a variable of env, "" when it is not there.
func Lookup(env []string, key string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}
