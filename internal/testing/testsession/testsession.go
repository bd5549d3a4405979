// Package testsession provides sandboxes with sessions for tests of packages that use sessions.
package testsession

import (
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// Open returns a provider of host processes with sessions, which is closed when the test ends.
func Open(t testing.TB) atoll.Provider {
	t.Helper()
	dir := t.TempDir()
	p, err := local.New(local.Options{Dir: filepath.Join(dir, "local")})
	if err != nil {
		t.Fatal(err)
	}
	s := session.New(p, sqlite.New(filepath.Join(dir, "atoll.db")), session.Options{})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}
