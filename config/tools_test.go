package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

func TestTools(t *testing.T) {
	home := "HOME=" + t.TempDir()
	load := func(env ...string) (*config.Config, error) { return config.Load(config.Source{Env: append(env, home)}) }
	for _, tt := range []struct {
		provider string
		env      []string
		want     string // the default image; "" is the provider's
	}{
		{"gvisor", nil, "host"},
		{"docker", nil, "ubuntu:22.04"},
		{"docker", []string{"ATOLL_TOOLS_IMAGES=linux=debian:12"}, "debian:12"},
		{"local", nil, ""},
		{"mock", nil, ""},
		{"gvisor", []string{"ATOLL_TOOLS_IMAGES==debian:12,python=python:3.13"}, "debian:12"},
	} {
		cfg, err := load(tt.env...)
		if err != nil {
			t.Fatal(err)
		}
		opts, err := cfg.ToolOptions(tt.provider)
		if got := opts.Images.Shortcuts[""]; err != nil || got != tt.want {
			t.Errorf("%s, %v: the default image is %q, %v; want %q", tt.provider, tt.env, got, err, tt.want)
		}
		if opts.OwnPrograms != (tt.want == "host" || tt.want == "") {
			t.Errorf("%s, %v: own programs: %v", tt.provider, tt.env, opts.OwnPrograms)
		}
		if got := fmt.Sprintf("%v %v %v", opts.Blocked, opts.Roots, opts.Project); got != "[/etc/passwd /etc/shadow /root] [] default" {
			t.Errorf("%s: blocked, roots and project are %s", tt.provider, got)
		}
		if linux, err := opts.Images.Resolve("linux"); err != nil || linux == "host" {
			t.Errorf("%s: linux is %q, %v", tt.provider, linux, err)
		}
	}
	for _, name := range []string{"STATION_SANDBOX_CODE_MODE_ENABLED", "ATOLL_TOOLS_ENABLED"} {
		cfg, err := load(name + "=false")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cfg.ToolOptions("local"); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), "sandbox service is not enabled") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg, err := load("ATOLL_TOOLS_ROOTS=/work,/srv", "ATOLL_TOOLS_BLOCKED_PATHS=/srv/secret", "ATOLL_TOOLS_ALLOW_IMAGES=ghcr.io/acme/*", "ATOLL_CODE_ANYTHING=x")
	if err != nil {
		t.Fatal(err)
	}
	opts, err := cfg.ToolOptions("docker")
	if got := fmt.Sprintf("%v %v %v", opts.Roots, opts.Blocked, opts.Images.Allow); err != nil || got != "[/work /srv] [/srv/secret] [ghcr.io/acme/*]" {
		t.Errorf("the options are %s, %v", got, err)
	}
	for _, wrong := range []string{
		"ATOLL_TOOLS_IMAGES=python", "ATOLL_TOOLS_IMAGES=a=b:1,a=c:1", "ATOLL_TOOLS_IMAGES=a=Not An Image", "ATOLL_TOOLS_ALLOW_IMAGES=a*b",
		"ATOLL_TOOLS_ROOTS=work", "ATOLL_TOOLS_BLOCKED_PATHS=../x", "ATOLL_TOOLS_ENABLED=maybe",
	} {
		name, _, _ := strings.Cut(wrong, "=")
		if _, err := load(wrong); atoll.KindOf(err) != atoll.ErrInvalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
