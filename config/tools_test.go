package config_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

func TestInvalidTools(t *testing.T) {
	home := "HOME=" + t.TempDir()
	for _, wrong := range []string{
		"ATOLL_TOOLS_IMAGES=python", "ATOLL_TOOLS_IMAGES=a=b:1,a=c:1", "ATOLL_TOOLS_IMAGES=a=Not An Image", "ATOLL_TOOLS_ALLOW_IMAGES=a*b",
		"ATOLL_TOOLS_ROOTS=work", "ATOLL_TOOLS_BLOCKED_PATHS=../x", "ATOLL_TOOLS_ENABLED=maybe",
	} {
		name, _, _ := strings.Cut(wrong, "=")
		if _, err := config.Load(config.Source{Env: []string{wrong, home}}); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
