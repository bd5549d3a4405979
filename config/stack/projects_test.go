package stack

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An account of a project cannot lift limits, ask for more than the greatest ones, or name an image of any registry.
// An admin can.
func TestProjectLimits(t *testing.T) {
	b, err := loadBuilder(t, "provider: gvisor\nprojects:\n  memory: 4g\n  cpus: 1.5\n  images: [registry.example.com/team]\n", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	refuse := b.refuseSpec(nil)
	ctx := auth.WithAccount(t.Context(), auth.Account{Name: "a", Role: auth.RoleProject, Projects: []string{"p"}})
	for _, tt := range []struct {
		spec atoll.Spec
		want string // part of the error; "" for none
	}{
		{atoll.Spec{}, ""},
		{atoll.Spec{Resources: atoll.Resources{Memory: 4 << 30, CPUs: 1.5, Processes: 8192, Disk: 64 << 30}}, ""},
		{atoll.Spec{Resources: atoll.Resources{Memory: 4<<30 + 1}}, "the greatest limit of memory is 4g, see projects.memory (requires role admin)"},
		{atoll.Spec{Resources: atoll.Resources{Memory: atoll.Unlimited}}, "limit of memory"},
		{atoll.Spec{Resources: atoll.Resources{CPUs: 1.6}}, "limit of cpus is 1.5"},
		{atoll.Spec{Resources: atoll.Resources{CPUs: atoll.Unlimited}}, "limit of cpus"},
		{atoll.Spec{Resources: atoll.Resources{Processes: 8193}}, "limit of processes is 8192"},
		{atoll.Spec{Resources: atoll.Resources{Processes: atoll.Unlimited}}, "limit of processes"},
		{atoll.Spec{Resources: atoll.Resources{Disk: 65 << 30}}, "limit of disk is 64g"},
		{atoll.Spec{Resources: atoll.Resources{Disk: atoll.Unlimited}}, "limit of disk"},
		{atoll.Spec{Provider: "kubernetes", Resources: atoll.Resources{Memory: 5 << 30}}, "limit of memory"},
		{atoll.Spec{Provider: "local"}, "processes of the server's user"},
		{atoll.Spec{Provider: "native"}, "share the kernel of the server's machine: requires role admin; the operator can allow it with providers"},
		{atoll.Spec{Image: "host"}, ""},
		{atoll.Spec{Image: "registry.example.com/team/app:1"}, ""},
		{atoll.Spec{Image: "python:3.13"}, "projects may not use the registry docker.io; the operator can allow it with projects.images"},
		{atoll.Spec{Image: "127.0.0.1:5000/app"}, "projects may not use the registry 127.0.0.1:5000"},
		{atoll.Spec{Provider: "other", Image: "127.0.0.1:5000/app"}, "projects may not use the registry"},
	} {
		err := refuse(ctx, &tt.spec)
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%+v %q %s: got %v, want %q", tt.spec.Resources, tt.spec.Image, tt.spec.Provider, err, tt.want)
		}
	}
	if err := refuse(auth.WithTrustedSpec(ctx), &atoll.Spec{Image: "python:3.13", Resources: atoll.Resources{Memory: atoll.Unlimited}}); err != nil {
		t.Errorf("the spec of a template: %v", err)
	}
}

// Accounts of projects can use the provider native if the configuration names it. The default of providers does not.
func TestProjectNative(t *testing.T) {
	for file, want := range map[string]bool{
		"":                              false,
		"provider: docker":              false,
		"providers: [docker, gvisor]":   false,
		"providers: [gvisor, native]":   true,
		"provider: native":              true,
		"project_providers: [p=native]": true,
		"project_providers: [q=native]": false,
	} {
		b, err := loadBuilder(t, file, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		projects, err := b.ParseProjectProviders()
		if err != nil {
			t.Fatal(err)
		}
		refuse := b.refuseSpec(projects)
		if err := refuse(t.Context(), &atoll.Spec{Project: "p", Provider: "native"}); (err == nil) != want || err != nil && atoll.KindOf(err) != atoll.ErrDenied {
			t.Errorf("%s: %v", file, err)
		}
		if err := refuse(auth.WithTrustedSpec(t.Context()), &atoll.Spec{Project: "p", Provider: "native"}); err != nil {
			t.Errorf("%s: the spec of a template: %v", file, err)
		}
	}
}

// Without settings, the greatest limits leave the machine alive, and those of other machines are finite.
func TestProjectLimitsByDefault(t *testing.T) {
	b, err := loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	refuse := b.refuseSpec(nil)
	for _, tt := range []struct {
		provider string
		memory   atoll.Bytes
		want     bool // allowed
	}{
		{"gvisor", 256 << 20, true}, {"gvisor", 1 << 50, false}, {"gvisor", atoll.Unlimited, false},
		{"docker", 1 << 50, false}, {"microvm", 1 << 50, false},
		{"kubernetes", 1 << 40, true}, {"kubernetes", atoll.Unlimited, false}, {"modal", 1 << 40, true}, {"other", 1 << 40, true}, {"other", atoll.Unlimited, false},
	} {
		err := refuse(t.Context(), &atoll.Spec{Provider: tt.provider, Resources: atoll.Resources{Memory: tt.memory}})
		if (err == nil) != tt.want {
			t.Errorf("%s with %s: %v", tt.provider, tt.memory, err)
		}
	}
}
