package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// VMBundle is the bundle that scripts/bundle builds.
var VMBundle = Part{what: "a bundle that virtual machines boot", install: "apt mmdebstrap squashfs-tools, and run scripts/bundle", missing: func() error {
	_, err := bundleStore()
	return err
}}

// BundleStore needs VMBundle and returns the directory of its store. The store has three bundles:
// "debian"; "docker", with a Docker Engine; and "docker-wsl", a root archive of the latter.
func BundleStore(t testing.TB) string {
	t.Helper()
	Need(t, VMBundle)
	path, err := bundleStore()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func bundleStore() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "vm", "bundles")
	made, err := filepath.Glob(filepath.Join(path, "bundles", "*", "root.squashfs"))
	if err == nil && len(made) == 0 {
		err = fmt.Errorf("no bundle in %s", path)
	}
	return path, err
}
