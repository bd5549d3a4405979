package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"text/template"

	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll/internal/printable"
)

// A formatValue is the flag --format: a Go template for each sandbox.
type formatValue struct {
	text     string
	template *template.Template // nil without the flag
}

// addFormatFlag adds --format, with a shorthand unless that is "".
func (f *formatValue) addFormatFlag(fs *pflag.FlagSet, shorthand string) {
	fs.VarP(f, "format", shorthand, "print each sandbox by a Go `template`, like '{{.Name}} {{.State}}', or as json")
}

func (f *formatValue) Set(s string) error {
	text := strings.NewReplacer(`\t`, "\t", `\n`, "\n").Replace(s)
	if s == "json" {
		text = "{{json .}}"
	}
	if strings.HasPrefix(s, "table ") {
		return fmt.Errorf("%q: leave out table; atoll ls prints one", s)
	}
	t, err := template.New("").Funcs(template.FuncMap{"json": formatJSON, "join": strings.Join, "lower": strings.ToLower, "upper": strings.ToUpper}).Parse(text)
	if err != nil {
		return fmt.Errorf("%q: %s", s, explainTemplate(err))
	}
	f.text, f.template = s, t
	return nil
}

func (f *formatValue) String() string { return f.text }

func (f *formatValue) Type() string { return "template" }

// A view is a sandbox in templates.
type view struct{ inspection }

// Name returns the name of the sandbox, or "".
func (v view) Name() string { return v.Spec.Name }

// printView prints a sandbox by the template, and a newline.
func (f *formatValue) printView(w io.Writer, in inspection) error {
	var line strings.Builder
	if err := f.template.Execute(&line, view{in}); err != nil {
		return usageErrorf("--format %q: %s", f.text, explainTemplate(err))
	}
	_, err := fmt.Fprintln(w, printable.Escape(line.String(), "\t\n"))
	return err
}

// formatJSON returns v as JSON.
func formatJSON(v any) (string, error) {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(text.String(), "\n"), err
}

var (
	unknownField   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`can't evaluate field (\S+) in type (\S+)`) })
	templatePlaces = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^template: :\d+:(\d+:)? (executing "" at )?`) })
)

// explainTemplate returns the reason of an error of a template, without its position.
func explainTemplate(err error) string {
	if m := unknownField().FindStringSubmatch(err.Error()); m != nil {
		holder := strings.TrimPrefix(m[2], "*")
		if holder == "main.view" {
			holder = "a sandbox"
		}
		return fmt.Sprintf("%s has no field %s: --format json shows all, and a template names them as Go does, like .Spec.Name", holder, m[1])
	}
	return templatePlaces().ReplaceAllString(err.Error(), "")
}
