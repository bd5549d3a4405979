//go:build unix

package api

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestLoadTokenOfOtherUser(t *testing.T) {
	testenv.Need(t, testenv.Root)
	path := filepath.Join(t.TempDir(), "token")
	if err := errors.Join(os.WriteFile(path, []byte("known\n"), 0o600), os.Chown(path, 1234, 1234)); err != nil {
		t.Fatal(err)
	}
	if token, made, err := LoadToken(path); !errors.Is(err, atoll.ErrDenied) || !strings.Contains(err.Error(), "1234") {
		t.Errorf("LoadToken = %q, %v, %v; want %q", token, made, err, atoll.ErrDenied)
	}
}

func TestLoadTokenFromPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	finishesSoon(t, "a token in a pipe", func() {
		if _, _, err := LoadToken(path); !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("LoadToken: %v, want %q", err, atoll.ErrInvalid)
		}
	})
}
