package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func TestImage(t *testing.T) {
	cfg, err := load(t, "image:\n  insecure: [registry.lan, \"10.0.0.1:5000\", \"[fd00::1]:5000\"]\n  pull: always\n", []string{
		"ATOLL_IMAGE_TIMEOUT=10m", "ATOLL_IMAGE_LIMIT=1g"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Image{Insecure: []string{"registry.lan", "10.0.0.1:5000", "[fd00::1]:5000"}, Pull: "always", Timeout: atoll.Duration(10 * time.Minute), Limit: 1 << 30}
	if got := cfg.Image; !slices.Equal(got.Insecure, want.Insecure) || got.Pull != want.Pull || got.Timeout != want.Timeout || got.Limit != want.Limit {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if cfg, err = load(t, "image: {timeout: -1, limit: -1}\n", nil, nil); err != nil || cfg.Image.Timeout >= 0 || cfg.Image.Limit != atoll.Unlimited {
		t.Errorf("without limits: %+v, %v", cfg, err)
	}
	for file, want := range map[string]string{
		"image: {insecure: [\"http://registry.lan\"]}\n": `image.insecure: "http://registry.lan": write it like registry.example.com or 10.0.0.1:5000`,
		"image: {insecure: [registry.lan/team]}\n":       `image.insecure: "registry.lan/team": write it like`,
		"image: {insecure: [\":5000\"]}\n":               `image.insecure: ":5000": write it like`,
		"image: {insecure: [\"\"]}\n":                    `image.insecure: "": write it like`,
		"image: {pull: sometimes}\n":                     `image.pull: "sometimes": use one of missing, always, never`,
		"image: {timeout: 0}\n":                          "must be positive, or -1 for no limit",
		"image: {timeout: -5m}\n":                        "must be positive, or -1 for no limit",
		"image: {timeout: soon}\n":                       `image.timeout: duration "soon": write it like 90s`,
		"image: {limit: 0}\n":                            "must be positive, or -1 for no limit",
		"image: {limit: -2}\n":                           "image.limit: ",
	} {
		if _, err := load(t, file, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", file, err, want)
		}
	}
}
