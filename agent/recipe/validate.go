package recipe

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/internal/egress"
	"github.com/seed46cd37a8/atoll/internal/suggest"
)

var (
	nameForm     = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)
	variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	npmForm      = regexp.MustCompile(`^(@[a-z0-9._-]+/)?[a-z0-9._-]+@[0-9][A-Za-z0-9.+-]*$`)
	pipForm      = regexp.MustCompile(`^[A-Za-z0-9._-]+(\[[a-z,]+\])?==[0-9][A-Za-z0-9.+!]*$`)
	needForm     = regexp.MustCompile(`^[a-z][a-z0-9+-]*(>=[0-9]+(\.[0-9]+)*)?$`)
)

// Validate returns the faults of the recipe, nil if there are none.
func (r *Recipe) Validate() error {
	var f faults
	if !nameForm.MatchString(r.Name) {
		f.addFaultf("name: %q: use lower case letters, digits and -", r.Name)
	}
	if r.Exec == "" || strings.ContainsAny(r.Exec, " \t\n") {
		f.addFaultf("command: %q: write the name of the program; its arguments belong below args", r.Exec)
	}
	r.checkInstall(&f)
	r.checkArgs(&f)
	r.checkSecrets(&f)
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		f.checkVariable("env", name)
		f.checkTemplate("env."+name, r.Env[name])
		if slices.ContainsFunc(r.Secrets, func(s Secret) bool { return s.Name == name }) {
			f.addFaultf("env: %s is a secret: leave it out here", name)
		}
	}
	r.checkHosts(&f)
	for _, p := range r.State {
		f.checkPath("state", p)
	}
	r.checkFiles(&f)
	return errors.Join(f...)
}

// faults are the errors of a recipe.
type faults []error

func (f *faults) addFaultf(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (f *faults) checkVariable(at, name string) {
	if !variableForm.MatchString(name) {
		f.addFaultf("%s: %q is not the name of a variable: use letters, digits and _", at, name)
	}
}

// checkPath adds a fault unless p is a clean path below the home directory.
func (f *faults) checkPath(at, p string) {
	if p == "" || p == "." || path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../") || strings.HasPrefix(p, "~") {
		f.addFaultf("%s: %q: write a path relative to the home directory, like .config/agent", at, p)
	}
}

// checkTemplate adds a fault unless a template renders, with secrets and without.
func (f *faults) checkTemplate(at, text string) {
	if _, err := renderTemplate(at, text, Params{Home: "/root", Workdir: "/work"}); err != nil {
		f.addFaultf("%s: %w", at, err)
	}
}

func (r *Recipe) checkInstall(f *faults) {
	ways := 0
	for _, set := range []bool{len(r.Install.NPM) > 0, len(r.Install.Pip) > 0, r.Install.Script != ""} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		f.addFaultf("install: set one of npm, pip and script only")
	}
	for _, p := range r.Install.NPM {
		if !npmForm.MatchString(p) {
			f.addFaultf("install.npm: %q: write it with its version, NAME@1.2.3", p)
		}
	}
	for _, p := range r.Install.Pip {
		if !pipForm.MatchString(p) {
			f.addFaultf("install.pip: %q: write it with its version, NAME==1.2.3", p)
		}
	}
	for _, n := range r.Install.Needs {
		if !needForm.MatchString(n) {
			f.addFaultf("install.needs: %q: write a program, like git or node>=20", n)
		}
	}
}

func (r *Recipe) checkArgs(f *faults) {
	if len(r.Headless) == 0 || !strings.Contains(strings.Join(r.Headless, " "), promptMark) {
		f.addFaultf("headless: write arguments with %s", promptMark)
	}
	lists := []struct {
		name string
		args []string
	}{{"interactive", r.Interactive}, {"headless", r.Headless}, {"resume", r.Resume}, {"resume_headless", r.ResumeHeadless}}
	for _, list := range lists {
		if list.args != nil && !slices.Contains(list.args, argsMark) {
			f.addFaultf("%s: has no %s: write it where args belong", list.name, argsMark)
		}
	}
	for _, arg := range r.Args {
		if strings.Contains(arg, argsMark) || strings.Contains(arg, promptMark) {
			f.addFaultf("args: %q: %s and %s belong into interactive, headless and resume", arg, argsMark, promptMark)
		}
	}
}

func (r *Recipe) checkSecrets(f *faults) {
	seen := map[string]bool{}
	for i := range r.Secrets {
		s := &r.Secrets[i]
		at := "secrets." + s.Name
		f.checkVariable("secrets", s.Name)
		if seen[s.Name] {
			f.addFaultf("%s: is set twice", at)
		}
		seen[s.Name] = true
		for _, v := range s.From {
			f.checkVariable(at+".from", v)
		}
		if len(s.Hosts) == 0 {
			f.addFaultf("%s: write the hosts that get the value", at)
		}
		for _, h := range s.Hosts {
			if e, err := egress.Parse(h); err != nil {
				f.addFaultf("%s.hosts: %q: %w", at, h, err)
			} else if e[0].InSet || e[0].Host == "" || e[0].ForRequests() {
				f.addFaultf("%s.hosts: %q: write a host, like api.example.com", at, h)
			}
		}
	}
}

// checkHosts checks the hosts that the recipe opens, and that none of them is for telemetry.
func (r *Recipe) checkHosts(f *faults) {
	var open []egress.Entry
	for _, text := range r.Allow {
		entries, err := egress.Parse(text)
		switch {
		case err != nil:
			f.addFaultf("allow: %q: %w", text, err)
		case !entries[0].InSet && entries[0].Host != "" && !strings.Contains(entries[0].Host, "."):
			hint := "the known ones are " + strings.Join(egress.SetNames(), ", ")
			if near := suggest.Closest(text, egress.SetNames()); near != "" {
				hint = "did you mean " + near
			}
			f.addFaultf("allow: %q is not a set of hosts: %s", text, hint)
		}
		open = append(open, entries...)
	}
	for _, s := range r.Secrets {
		for _, h := range s.Hosts {
			entries, _ := egress.Parse(h) // checkSecrets reports the error
			open = append(open, entries...)
		}
	}
	for _, host := range r.Telemetry {
		if !egress.ValidHost(host) {
			f.addFaultf("telemetry: %q: write a host, like telemetry.example.com", host)
		}
		for _, e := range open {
			if e.MatchesHost(host, 0) {
				f.addFaultf("telemetry: %s is open by the entry %q", host, e.Text)
			}
		}
	}
}

func (r *Recipe) checkFiles(f *faults) {
	for _, file := range r.Files {
		at := "files." + file.Path
		f.checkPath("files", file.Path)
		f.checkTemplate(at, file.Content)
		switch file.When {
		case "", WhenMissing, WhenAlways:
		case WhenMerge:
			r.checkMerge(f, file)
		default:
			f.addFaultf("%s: when: %q: use missing, always or merge", at, file.When)
		}
	}
}

// checkMerge checks a file with the rule WhenMerge: its content is a JSON object, with placeholders and without.
func (r *Recipe) checkMerge(f *faults, file FileRule) {
	if path.Ext(file.Path) != ".json" {
		f.addFaultf("files.%s: when: merge is for files with JSON", file.Path)
		return
	}
	placeholders := map[string]string{}
	for _, s := range r.Secrets {
		placeholders[s.Name] = "placeholder"
	}
	for _, secrets := range []map[string]string{nil, placeholders} {
		text, err := renderTemplate(file.Path, file.Content, Params{Home: "/root", Workdir: "/work", Secrets: secrets})
		if err != nil || strings.TrimSpace(text) == "" {
			continue // checkTemplate reports the error
		}
		if _, err := decodeObject([]byte(text)); err != nil {
			f.addFaultf("files.%s: content: write a JSON object: %w", file.Path, err)
			return
		}
	}
}
