package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/template"
)

// Template says which templates there are.
type Template struct {
	Dir     string `yaml:"dir" form:"path" doc:"directory of templates, a .yaml for each; without, that called templates beside this file, if it is there"`
	Default string `yaml:"default" doc:"template of those who name none"`
}

func defaultTemplate() Template { return Template{Default: template.ClaudeCode} }

// check calls bad with the key of each value that makes no sense.
func (t Template) check(bad func(key string, err error)) {
	if !atoll.ValidName(t.Default) {
		bad("template.default", fmt.Errorf("%q: use the name of a template, like %s", t.Default, template.ClaudeCode))
	}
}

// Templates reads the templates: those that are always there, and those of template.dir,
// which must be there if it was set. Kinds: ErrInvalid and ErrAlreadyExists, with all
// that is wrong; ErrNotExist; those of reading files.
func (c *Config) Templates() (*template.Set, error) {
	set := template.NewSet()
	if dir := c.templateDir(); dir != "" {
		if err := set.LoadDir(dir); err != nil {
			return nil, err
		}
	}
	if c.Template.Default != "" {
		if err := set.SetDefault(c.Template.Default); err != nil {
			return nil, atoll.Errorf("template", "", atoll.ErrInvalid, "%s: %w", origin(c.Origin("template.default"), "template.default"), err)
		}
	}
	return set, nil
}

// templateDir is where templates are; "" if nobody has said where, and there are none at
// the usual place.
func (c *Config) templateDir() string {
	if c.Template.Dir != "" || c.file == "" {
		return c.Template.Dir
	}
	dir := filepath.Join(filepath.Dir(c.file), "templates")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return dir
}
