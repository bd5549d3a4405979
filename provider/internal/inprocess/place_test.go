package inprocess

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/volume"
)

// Names below the work directory are on the data volume; all other names are the machine's.
func TestHostPath(t *testing.T) {
	store, err := volume.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ workdir, dir, want string }{
		{"/work", "", "DATA"},
		{"/work", "sub", "DATA/sub"},
		{"/work", "/work/sub/../x", "DATA/x"},
		{"/work", "../etc", "/etc"},
		{"/work", "/worker", "/worker"},
		{"/work/deep", "", "DATA/deep"},
		{"/work/deep", "..", "DATA"},
		{"/srv/app", "", "DATA"},
		{"/srv/app", "/work", "/work"},
		{"/srv/app", "/srv", "/srv"},
	} {
		spec := (&atoll.Spec{Workdir: tt.workdir}).WithDefaults()
		pl := newPlace(spec, store)
		if got := strings.ReplaceAll(pl.HostPath(tt.dir), filepath.Clean(pl.Dir), "DATA"); got != tt.want {
			t.Errorf("workdir %s: %q is %s, want %s", tt.workdir, tt.dir, got, tt.want)
		}
	}
}
