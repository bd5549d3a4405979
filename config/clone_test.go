package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// The limits of clones have defaults and must be positive. Variables that sandboxes with a workspace have are not
// settings.
func TestClone(t *testing.T) {
	home := "HOME=" + t.TempDir()
	cfg, err := config.Load(config.Source{Env: []string{home, "ATOLL_WORKSPACE=/work", "ATOLL_WORKSPACE_NAME=w", "ATOLL_CLONE_LIMIT=1g"}})
	if err != nil || cfg.Clone.Timeout != atoll.Duration(30*time.Minute) || cfg.Clone.Limit != 1<<30 {
		t.Errorf("Load: %+v, %v", cfg, err)
	}
	_, err = config.Load(config.Source{Env: []string{home, "ATOLL_CLONE_TIMEOUT=0", "ATOLL_CLONE_LIMIT=-1"}})
	if err == nil || !strings.Contains(err.Error(), "ATOLL_CLONE_TIMEOUT") || !strings.Contains(err.Error(), "ATOLL_CLONE_LIMIT") {
		t.Errorf("Load with limits of 0 and below: %v", err)
	}
}
