package config_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

func TestInvalidCompute(t *testing.T) {
	home := "HOME=" + t.TempDir()
	for _, wrong := range []string{"ATOLL_COMPUTE_BACKEND=docker", "ATOLL_DAGGER_PATIENCE=0s"} {
		name, _, _ := strings.Cut(wrong, "=")
		if _, err := config.Load(config.Source{Env: []string{wrong, home}}); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
