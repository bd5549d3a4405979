package guest

import (
	"slices"
	"testing"
)

func TestHierarchies(t *testing.T) {
	const head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
	for text, want := range map[string][]string{
		head + "cpuset\t0\t1\t1\nmemory\t0\t7\t1\n":                                              nil, // the second version has them
		head + "cpu\t2\t1\t1\ncpuacct\t2\t1\t1\nmemory\t3\t1\t1\npids\t0\t1\t1\nrdma\t4\t1\t0\n": {"cpu,cpuacct", "memory"},
	} {
		if got := hierarchies(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
