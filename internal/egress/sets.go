package egress

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
	"sync"
)

// setsText has the ready-made sets of hosts: a line has the name of a set and some of its hosts.
//
//go:embed sets.txt
var setsText string

// sets returns the hosts of each set.
var sets = sync.OnceValue(func() map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(setsText) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] == "#" {
			continue
		}
		all[fields[0]] = append(all[fields[0]], fields[1:]...)
	}
	return all
})

// SetNames returns the names of the ready-made sets, sorted.
func SetNames() []string { return slices.Sorted(maps.Keys(sets())) }

// SetHosts returns the hosts of a set, nil if there is no such set.
func SetHosts(name string) []string { return slices.Clone(sets()[name]) }
