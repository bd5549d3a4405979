package process

import (
	"slices"
	"strings"
)

// Environ merges lists of "KEY=value" pairs into one that has each key once, with its last
// value, in the order of first appearance.
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

// Lookup returns the value of a variable in env, "" if env does not have it.
func Lookup(env []string, key string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}
