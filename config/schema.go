package config

import (
	"encoding"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/secretref"
)

// envPrefix is the prefix of all environment variables of Atoll.
const envPrefix = "ATOLL_"

// passThrough has the prefixes of variables that are not settings: tools inside sandboxes use the first
// two, packaging/install.sh the next ones, and programs with provider/auto the last.
var passThrough = []string{"ATOLL_CODE_", "ATOLL_WORKSPACE", "ATOLL_BASE_URL", "ATOLL_INSTALL_DIR", "ATOLL_VERSION", "ATOLL_PROGRAM"}

// A schema has the keys of a Config, from the tags of its fields.
type schema struct {
	settings []*setting
	tables   []string
	named    map[string]reflect.Value // tables by name, such as pools: maps of pointers to structs
	home     string                   // for ~ in paths

	warnings []string
}

// A setting is one key and the field of its value.
type setting struct {
	key   string
	doc   string
	form  string // "path", or the allowed words, or ""
	alias string // an environment variable of another program for the same setting; "" for none
	field reflect.Value
	from  string

	// lenient means that an invalid value of alias is not an error. The setting then has the value and source that it
	// has without alias.
	lenient    bool
	before     reflect.Value // value without alias
	beforeFrom string
}

// schemaOf returns the schema of the fields of cfg.
func schemaOf(cfg *Config, home string) *schema {
	s := &schema{home: home, named: map[string]reflect.Value{}}
	s.addFields("", reflect.ValueOf(cfg).Elem())
	return s
}

// addFields adds the settings of the fields of v, with a prefix of their keys.
func (s *schema) addFields(prefix string, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		key, field := prefix+name, v.Field(i)
		if _, text := field.Addr().Interface().(encoding.TextUnmarshaler); field.Kind() == reflect.Struct && !text {
			s.tables = append(s.tables, key)
			s.addFields(key+".", field)
			continue
		}
		if field.Kind() == reflect.Map {
			s.tables = append(s.tables, key)
			s.named[key] = field
			continue
		}
		s.settings = append(s.settings, &setting{key: key, doc: f.Tag.Get("doc"), form: f.Tag.Get("form"), alias: f.Tag.Get("alias"), lenient: f.Tag.Get("lenient") == "true", field: field, from: "default"})
	}
}

// findSetting returns the setting of key, or nil.
func (s *schema) findSetting(key string) *setting {
	for _, l := range s.settings {
		if l.key == key {
			return l
		}
	}
	return nil
}

// addNamedTable adds the table of a key such as "pool.small" with its defaults, unless it exists or key is another
// one.
func (s *schema) addNamedTable(key string) error {
	table, name, _ := strings.Cut(key, ".")
	all, ok := s.named[table]
	if !ok || name == "" || strings.Contains(name, ".") || s.isTable(key) {
		return nil
	}
	if !atoll.ValidName(name) {
		return fmt.Errorf("%s: invalid name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", table, name)
	}
	if all.IsNil() {
		all.Set(reflect.MakeMap(all.Type()))
	}
	one := reflect.New(all.Type().Elem().Elem())
	all.SetMapIndex(reflect.ValueOf(name), one)
	if d, ok := one.Interface().(interface{ setDefaults() }); ok {
		d.setDefaults()
	}
	s.tables = append(s.tables, key)
	s.addFields(key+".", one.Elem())
	return nil
}

func (s *schema) isTable(key string) bool { return slices.Contains(s.tables, key) }

func (s *schema) listValues() []Value {
	all := make([]Value, 0, len(s.settings))
	for _, l := range s.settings {
		all = append(all, Value{Key: l.key, Value: l.formatValue(), From: l.from, Doc: l.doc})
	}
	return all
}

// readEnv reads the ATOLL_ variables, and the aliases of settings without one. Empty variables count as unset.
func (s *schema) readEnv(env []string) error {
	known := map[string]*setting{FileVar: nil, atoll.SecretVar: nil} // SecretVar is set inside of sandboxes
	var errs errorList
	vars := parseEnv(env)
	for _, l := range s.settings {
		if strings.Count(l.key, ".") > 1 {
			continue // settings of named tables are in the file only
		}
		known[l.envName()] = l
		if value := vars[l.alias]; l.alias != "" && value != "" && vars[l.envName()] == "" {
			errs.addError(s.setAlias(l, value))
		}
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.ContainsFunc(passThrough, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		l, ok := known[name]
		switch {
		case !ok:
			errs.addErrorf("environment: unknown variable %s: %s", name, suggestKey(name, slices.Sorted(maps.Keys(known))))
		case l != nil && value != "":
			errs.addError(l.setValue(l.splitList(value), name, s.home))
		}
	}
	return errs.joinErrors()
}

// setAlias sets a setting from its alias.
func (s *schema) setAlias(l *setting, value string) error {
	if !l.lenient {
		return l.setValue(l.splitList(value), l.alias, s.home)
	}
	l.before, l.beforeFrom = reflect.ValueOf(l.field.Interface()), l.from
	if err := l.parseTexts(l.splitList(value), l.alias, s.home); err != nil {
		s.ignoreAlias(l, err)
		return nil
	}
	l.from = l.alias
	return nil
}

// ignoreAlias restores the value that the setting has without its alias, and adds a warning.
func (s *schema) ignoreAlias(l *setting, err error) {
	l.field.Set(l.before)
	l.from = l.beforeFrom
	s.warnings = append(s.warnings, fmt.Sprintf("%s: %v; %s remains %s", l.alias, err, l.key, l.formatValue()))
}

// readFlags reads the settings in flags, by key.
func (s *schema) readFlags(flags map[string]string) error {
	var errs errorList
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		l := s.findSetting(key)
		if l == nil {
			errs.addErrorf("flag: unknown key %q: %s", key, suggestKey(key, s.listKeys()))
			continue
		}
		errs.addError(l.setValue(l.splitList(flags[key]), l.flagName(), s.home))
	}
	return errs.joinErrors()
}

// listKeys returns the keys of all settings and tables.
func (s *schema) listKeys() []string {
	keys := slices.Clone(s.tables)
	for _, l := range s.settings {
		keys = append(keys, l.key)
	}
	return keys
}

// envName returns the environment variable of the setting.
func (l *setting) envName() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(l.key, ".", "_"))
}

// flagName returns the flag of the setting.
func (l *setting) flagName() string {
	return "--" + strings.NewReplacer(".", "-", "_", "-").Replace(l.key)
}

// splitList splits the text of a list in a variable or flag. Other settings have one text.
func (l *setting) splitList(text string) []string {
	if l.field.Kind() != reflect.Slice {
		return []string{text}
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// setValue parses texts and sets the value. home replaces ~. Errors begin with from.
func (l *setting) setValue(texts []string, from, home string) error {
	if err := l.parseTexts(texts, from, home); err != nil {
		return fmt.Errorf("%s: %w", DescribeOrigin(from, l.key), err)
	}
	l.from = from
	return nil
}

// DescribeOrigin returns the source of a value and its key, without repeating the key.
func DescribeOrigin(from, key string) string {
	switch {
	case from == "default":
		return key
	case strings.HasPrefix(from, "--"), isVariable(from):
		return from // a spelling of the key
	}
	return from + ": " + key
}

// isVariable reports whether a source is an environment variable. Files are named with a line, even if their names
// begin like a variable.
func isVariable(from string) bool {
	return strings.HasPrefix(from, envPrefix) && !strings.Contains(from, ":")
}

// parseTexts parses texts into the field, without a change of from.
func (l *setting) parseTexts(texts []string, from, home string) error {
	if l.field.Kind() == reflect.Slice {
		l.field.Set(reflect.ValueOf(slices.Clone(texts)))
		return nil
	}
	if len(texts) != 1 {
		return fmt.Errorf("want one value, not a list")
	}
	text := texts[0]
	switch p := l.field.Addr().Interface().(type) {
	case *Secret:
		return p.Parse(text, isVariable(from) || from == l.alias, home)
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	case *atoll.Bytes:
		n, err := atoll.ParseBytes(text)
		*p = n
		return err
	case *string:
		return l.parseString(p, text, home)
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q: write true or false", text)
		}
		*p = b
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q: write a whole number", text)
		}
		*p = n
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || n != n || math.IsInf(n, 0) {
			return fmt.Errorf("%q: write a number", text)
		}
		*p = n
	default:
		panic(fmt.Sprintf("config: key %s has a type that cannot be set: %T", l.key, p))
	}
	return nil
}

func (l *setting) parseString(p *string, text, home string) error {
	switch {
	case l.form == "path":
		text = secretref.ExpandHome(text, home)
		if !filepath.IsAbs(text) {
			return fmt.Errorf("%q: must be an absolute path", text)
		}
		text = filepath.Clean(text)
	case l.form != "" && !slices.Contains(strings.Fields(l.form), text):
		return fmt.Errorf("%q: use one of %s", text, strings.Join(strings.Fields(l.form), ", "))
	}
	*p = text
	return nil
}

// formatValue returns the value as it can be written in the file.
func (l *setting) formatValue() string {
	switch v := l.field.Interface().(type) {
	case Secret:
		return v.Reference()
	case []string:
		return strings.Join(v, ",")
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}
