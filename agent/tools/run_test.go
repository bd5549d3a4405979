package tools_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/frontmatter"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// A program that has run has a result, also if it leaves too many files to list.
func TestRunThatLeavesTooMuch(t *testing.T) {
	lists := 0
	p := &brokenProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	p.list = func() error {
		if lists++; lists%2 == 0 {
			return atoll.Errorf("list", ".", atoll.ErrExhausted, "more than 200000 entries")
		}
		return nil
	}
	images := frontmatter.Images{Shortcuts: map[string]string{"linux": "host"}}
	b := newBenchOn(t, p, tools.Options{Images: images})
	r := b.call("sandbox_run", m{"runtime": "bash", "code": "echo done"}).wantFields("ok", true, "stdout", "done\n", "artifacts", nil)
	if !strings.Contains(fmt.Sprint(r.out["note"]), "more than 200000 entries") {
		t.Errorf("it gives %v", r.out)
	}
	p.list = func() error { return nil }
	b = newBenchOn(t, p, tools.Options{Images: images, Agent: &frontmatter.Sandbox{Mode: frontmatter.ModeCompute, Runtime: "bash", Limits: frontmatter.Limits{Timeout: time.Minute, MaxFileSize: 1000, MaxFiles: 2}}})
	r = b.call("sandbox_run", m{"runtime": "bash", "code": "touch 1 2 3"}).wantFields("ok", true)
	if all, _ := r.out["artifacts"].([]any); len(all) != 2 || !strings.Contains(fmt.Sprint(r.out["note"]), "more files than the 2") {
		t.Errorf("it gives %v", r.out)
	}
}

// parseAgent returns the sandbox section of an agent's file.
func parseAgent(t *testing.T, text string) *frontmatter.Sandbox {
	t.Helper()
	agent, err := frontmatter.Parse("a.md", strings.NewReader("---\n"+text+"\n---\n"))
	if err != nil {
		t.Fatal(err)
	}
	return agent.Sandbox
}

// The runtime of an agent's file is the one of its programs, and the only one; the short
// form is the long one.
func TestRunOfAgents(t *testing.T) {
	images := frontmatter.Images{Shortcuts: map[string]string{"": "host"}}
	p := newBench(t, tools.Options{}).provider
	for _, tt := range []struct {
		file, preset, refused, allowed string
	}{
		{"sandbox: bash", "bash", "python", "bash"},
		{"sandbox: shell", "bash", "node", "bash"},
		{"sandbox: {runtime: bash}", "bash", "node", "bash"},
		{"sandbox: python", "python", "bash", "python"},
		{"sandbox: {runtime: python, mode: compute}", "python", "bash", "python"},
		{"sandbox: {allow_network: false}", "python", "ruby", "python, node or bash"},
		{"sandbox: host", "", "ruby", "python, node or bash"},
	} {
		opts := tools.Options{OwnPrograms: true, Images: images, Agent: parseAgent(t, tt.file)}
		opts.Images.Allow = []string{"host"}
		b := newBenchOn(t, p, opts)
		code := map[string]string{"bash": "echo it ran", "python": "print('it ran')"}[tt.preset]
		if tt.preset == "" {
			b.call("sandbox_run", m{"code": ""}).wantError(atoll.ErrInvalid, `"runtime" is missing`)
			b.call("sandbox_run", m{"runtime": "bash", "code": "echo it ran"}).wantFields("ok", true, "stdout", "it ran\n")
		} else {
			b.call("sandbox_run", m{"code": code}).wantFields("ok", true, "runtime", tt.preset, "stdout", "it ran\n", "error", nil)
			b.call("sandbox_run", m{"runtime": tt.preset, "code": code}).wantFields("ok", true)
		}
		b.call("sandbox_run", m{"runtime": tt.refused, "code": ""}).
			wantFields("ok", false, "exit_code", -1, "error", fmt.Sprintf("runtime %q is not in allowed list: use %s", tt.refused, tt.allowed))
		in := b.Tools()[0].Input
		if required, preset := fmt.Sprint(in.Required), string(in.Properties["runtime"].Default); required != map[bool]string{true: "[code]", false: "[runtime code]"}[tt.preset != ""] || tt.preset != "" && preset != fmt.Sprintf("%q", tt.preset) {
			t.Errorf("%s: the schema requires %s, with the default %s", tt.file, required, preset)
		}
	}
	newBenchOn(t, p, tools.Options{}).call("sandbox_run", m{"code": ""}).wantError(atoll.ErrInvalid, `"runtime" is missing: the language of the code: python, node or bash`)
}

// An imageProvider records the images of its sandboxes.
type imageProvider struct {
	atoll.ProviderLayer
	images []string
}

func (p *imageProvider) Create(ctx context.Context, spec *atoll.Spec) (atoll.Sandbox, error) {
	p.images = append(p.images, spec.Image)
	with := *spec
	with.Image = ""
	return p.Provider.Create(ctx, &with)
}

// With an agent's file as without one, the default image is used, unless the file or the
// configuration names an image, or a program needs packages.
func TestImagesOfAgents(t *testing.T) {
	p := &imageProvider{ProviderLayer: atoll.ProviderLayer{Provider: newBench(t, tools.Options{}).provider}}
	for _, tt := range []struct {
		file, want string
		in         m
	}{
		{"", "[host]", m{"runtime": "bash", "code": ""}},
		{"sandbox: bash", "[host]", m{"code": ""}},
		{"sandbox: {limits: {max_files: 9}}", "[host]", m{"runtime": "bash", "code": ""}},
		{"sandbox: debian:12", "[debian:12]", m{"runtime": "bash", "code": ""}},
		{"sandbox: node", "[node:22]", m{"code": ""}}, // by the configuration
		{"sandbox: {pip_packages: [x]}", "[python:3.11-slim]", m{"code": ""}},
	} {
		opts := tools.Options{OwnPrograms: true, Images: frontmatter.Images{Shortcuts: map[string]string{"": "host", "node": "node:22"}}}
		if tt.file != "" {
			opts.Agent = parseAgent(t, tt.file)
		}
		p.images = nil
		if r := newBenchOn(t, p, opts).call("sandbox_run", tt.in); r.err != nil || fmt.Sprint(p.images) != tt.want {
			t.Errorf("%s: it uses %q, want %s; %v, %v", tt.file, p.images, tt.want, r.out, r.err)
		}
	}
	images := frontmatter.Images{Shortcuts: map[string]string{"": "host"}}
	newBenchOn(t, p, tools.Options{Images: images, Agent: parseAgent(t, "sandbox: {mode: code}")}).call("sandbox_open", m{}).wantFields("image", "host")
	newBenchOn(t, p, tools.Options{Images: images, Agent: parseAgent(t, "sandbox: {mode: code, runtime: linux, session: agent}")}).
		call("sandbox_open", m{}).wantError(atoll.ErrUnsupported, "no images") // of ubuntu:22.04
}
