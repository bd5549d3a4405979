package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// DaggerPrograms are the programs that scripts/dagger builds.
var DaggerPrograms = Part{what: "Dagger's engine", script: "scripts/dagger", missing: func() error {
	_, err := daggerProgram("engine")
	return err
}}

// Dagger needs DaggerPrograms and returns the path of one of them: engine; dagger, the CLI; or
// dnsname, a CNI plugin.
func Dagger(t testing.TB, program string) string {
	t.Helper()
	Need(t, DaggerPrograms)
	path, err := daggerProgram(program)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func daggerProgram(program string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "atoll-test", "dagger", program)
	_, err = os.Stat(path)
	return path, err
}
