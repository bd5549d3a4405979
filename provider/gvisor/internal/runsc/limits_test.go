//go:build linux

package runsc

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

func TestAddLimits(t *testing.T) {
	for name, test := range map[string]struct {
		resources string
		want      []string
	}{
		"none":              {`{}`, nil},
		"memory":            {`{"memory": {"limit": 268435456}}`, []string{"--total-memory=268435456"}},
		"one CPU":           {`{"cpu": {"quota": 100000, "period": 100000}}`, []string{"--cpu-num=1"}},
		"a part of a CPU":   {`{"cpu": {"quota": 1, "period": 100000}}`, []string{"--cpu-num=1"}},
		"more than one CPU": {`{"cpu": {"quota": 110000, "period": 100000}}`, []string{"--cpu-num=2"}},
		"more than it has":  {`{"cpu": {"quota": 9000000000000000000, "period": 100000}}`, []string{"--cpu-num=" + fmt.Sprint(runtime.NumCPU())}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(file, []byte(`{"linux": {"resources": `+test.resources+`}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			spec, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer spec.Close()
			args := []string{"runsc-sandbox", "--root=/x", "boot", "--bundle=/b", fmt.Sprintf("--spec-fd=%d", spec.Fd()), "--cpu-num=7", "id"}
			want := slices.Insert(slices.Clone(args), len(args)-1, test.want...)
			got, err := addLimits(args)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("addLimits() = %q, %v, want %q", got, err, want)
			}
			if n, err := spec.Seek(0, 1); n != 0 || err != nil {
				t.Errorf("the offset of the specification is %d, %v, want 0", n, err)
			}
		})
	}
	gofer := []string{"runsc-gofer", "--root=/x", "gofer", "id"}
	if got, err := addLimits(gofer); err != nil || !slices.Equal(got, gofer) {
		t.Errorf("addLimits() of a gofer = %q, %v", got, err)
	}
}
