package stack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll/config"
)

// loadBuilder returns a Builder of the file text in a new home directory.
func loadBuilder(t *testing.T, text string, env []string, flags map[string]string) (*Builder, error) {
	t.Helper()
	home := t.TempDir()
	file := filepath.Join(home, "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file, Env: append([]string{"HOME=" + home}, env...), Flags: flags})
	if err != nil {
		return nil, err
	}
	return NewBuilder(cfg)
}

// buildConfig returns a Builder of cfg.
func buildConfig(t *testing.T, cfg *config.Config) *Builder {
	t.Helper()
	b, err := NewBuilder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
