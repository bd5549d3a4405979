package stack

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestTools(t *testing.T) {
	for _, tt := range []struct {
		provider string
		env      []string
		want     string // the default image; "" is the provider's
	}{
		{"gvisor", nil, "host"},
		{"native", nil, "host"},
		{"docker", nil, "ubuntu:22.04"},
		{"docker", []string{"ATOLL_TOOLS_IMAGES=linux=debian:12"}, "debian:12"},
		{"local", nil, ""},
		{"mock", nil, ""},
		{"gvisor", []string{"ATOLL_TOOLS_IMAGES==debian:12,python=python:3.13"}, "debian:12"},
	} {
		b, err := loadBuilder(t, "", tt.env, nil)
		if err != nil {
			t.Fatal(err)
		}
		opts, err := b.ToolOptions(tt.provider)
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
		b, err := loadBuilder(t, "", []string{name + "=false"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.ToolOptions("local"); atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), "sandbox service is not enabled") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, err := loadBuilder(t, "", []string{"ATOLL_TOOLS_ROOTS=/work,/srv", "ATOLL_TOOLS_BLOCKED_PATHS=/srv/secret", "ATOLL_TOOLS_ALLOW_IMAGES=ghcr.io/acme/*", "ATOLL_CODE_ANYTHING=x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	opts, err := b.ToolOptions("docker")
	if got := fmt.Sprintf("%v %v %v", opts.Roots, opts.Blocked, opts.Images.Allow); err != nil || got != "[/work /srv] [/srv/secret] [ghcr.io/acme/*]" {
		t.Errorf("the options are %s, %v", got, err)
	}
}
