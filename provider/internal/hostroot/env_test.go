//go:build linux

package hostroot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Programs of the host find each other and the certificates, as far as the sandbox sees them.
func TestEnv(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"shown/bin", "secret/bin"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir+"/secret/bin", dir+"/shown/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/shown/ca.pem", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got := Env([]string{
		"PATH=" + dir + "/shown/bin::relative:" + dir + "/secret/bin:/usr/bin:" + dir + "/shown/link:" + dir + "/shown/none:/usr/lib:" + dir + "/shown/bin",
		"SSL_CERT_FILE=" + dir + "/shown/ca.pem", "PIP_CERT=" + dir + "/secret/ca.pem", "GIT_SSL_CAINFO=", "TOKEN=" + dir + "/shown/ca.pem", "SSL_CERT_DIR=/usr/src",
	}, []string{dir + "/shown"})
	want := []string{"PATH=" + dir + "/shown/bin:/usr/bin:/usr/lib:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin", "SSL_CERT_FILE=" + dir + "/shown/ca.pem"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Env(nil, nil); !slices.Equal(got, []string{"PATH=" + DefaultPath}) {
		t.Errorf("of no environment: %q", got)
	}
}
