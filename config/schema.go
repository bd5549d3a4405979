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

// envPrefix begins every environment variable of ours.
const envPrefix = "ATOLL_"

// passThrough begin those that are not settings but meant for the tools inside a
// sandbox.
var passThrough = []string{"ATOLL_CODE_", "ATOLL_WORKSPACE"}

// A schema is what the fields of a Config say about its keys.
type schema struct {
	leaves []*leaf
	tables []string
	named  map[string]reflect.Value // tables of tables, whose keys are names: maps of pointers to structs
	home   string                   // for ~ in paths

	warnings []string
}

// A leaf is one key and the field that holds its value.
type leaf struct {
	key   string
	doc   string
	form  string // "path", or the words to choose from, or ""
	alias string // an environment variable of another program that says the same; "" for none
	field reflect.Value
	from  string

	// lenient says that a value of alias which makes no sense is no error: what would
	// count without it, before, counts then.
	lenient bool
	before  reflect.Value // and where it came from
	origin  string
}

func schemaOf(cfg *Config, home string) *schema {
	s := &schema{home: home, named: map[string]reflect.Value{}}
	s.add("", reflect.ValueOf(cfg).Elem())
	return s
}

func (s *schema) add(prefix string, v reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		key, field := prefix+name, v.Field(i)
		if _, text := field.Addr().Interface().(encoding.TextUnmarshaler); field.Kind() == reflect.Struct && !text {
			s.tables = append(s.tables, key)
			s.add(key+".", field)
			continue
		}
		if field.Kind() == reflect.Map {
			s.tables = append(s.tables, key)
			s.named[key] = field
			continue
		}
		s.leaves = append(s.leaves, &leaf{key: key, doc: f.Tag.Get("doc"), form: f.Tag.Get("form"), alias: f.Tag.Get("alias"), lenient: f.Tag.Get("lenient") == "true", field: field, from: "default"})
	}
}

func (s *schema) leaf(key string) *leaf {
	for _, l := range s.leaves {
		if l.key == key {
			return l
		}
	}
	return nil
}

// grow makes the table of a key that is a name in a table of tables, with what it is
// by default, if there is none yet.
func (s *schema) grow(key string) error {
	table, name, _ := strings.Cut(key, ".")
	all, ok := s.named[table]
	if !ok || name == "" || strings.Contains(name, ".") || s.isTable(key) {
		return nil
	}
	if !atoll.ValidName(name) {
		return fmt.Errorf("%s: %q is no name: use a letter or digit, then up to 64 letters, digits, '-' or '_'", table, name)
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
	s.add(key+".", one.Elem())
	return nil
}

func (s *schema) isTable(key string) bool { return slices.Contains(s.tables, key) }

func (s *schema) values() []Value {
	all := make([]Value, 0, len(s.leaves))
	for _, l := range s.leaves {
		all = append(all, Value{Key: l.key, Value: l.text(), From: l.from, Doc: l.doc})
	}
	return all
}

// readEnv takes every ATOLL_ variable, and aliases of those that are not set; an
// empty one counts as not set.
func (s *schema) readEnv(env []string) error {
	known := map[string]*leaf{FileVar: nil, atoll.SecretVar: nil} // the latter is there inside of a sandbox
	var errs errorList
	vars := environ(env)
	for _, l := range s.leaves {
		if strings.Count(l.key, ".") > 1 {
			continue // what has a name of its own is in the file alone
		}
		known[l.env()] = l
		if value := vars[l.alias]; l.alias != "" && value != "" && vars[l.env()] == "" {
			errs.add(s.setAlias(l, value))
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
			errs.addf("environment: unknown variable %s: %s", name, instead(name, slices.Sorted(maps.Keys(known))))
		case l != nil && value != "":
			errs.add(l.set(l.split(value), name, s.home))
		}
	}
	return errs.join()
}

// setAlias stores the value of a leaf's alias.
func (s *schema) setAlias(l *leaf, value string) error {
	if !l.lenient {
		return l.set(l.split(value), l.alias, s.home)
	}
	l.before, l.origin = reflect.ValueOf(l.field.Interface()), l.from
	if err := l.parse(l.split(value), l.alias, s.home); err != nil {
		s.forgive(l, err)
		return nil
	}
	l.from = l.alias
	return nil
}

// forgive has a leaf keep what it had without its alias, and notes why.
func (s *schema) forgive(l *leaf, err error) {
	l.field.Set(l.before)
	l.from = l.origin
	s.warnings = append(s.warnings, fmt.Sprintf("%s: %v; until then %s is %s", l.alias, err, l.key, l.text()))
}

func (s *schema) readFlags(flags map[string]string) error {
	var errs errorList
	for _, key := range slices.Sorted(maps.Keys(flags)) {
		l := s.leaf(key)
		if l == nil {
			errs.addf("flag: unknown key %q: %s", key, instead(key, s.keys()))
			continue
		}
		errs.add(l.set(l.split(flags[key]), l.flag(), s.home))
	}
	return errs.join()
}

// keys are those of leaves and tables.
func (s *schema) keys() []string {
	keys := slices.Clone(s.tables)
	for _, l := range s.leaves {
		keys = append(keys, l.key)
	}
	return keys
}

func (l *leaf) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(l.key, ".", "_"))
}

func (l *leaf) flag() string {
	return "--" + strings.NewReplacer(".", "-", "_", "-").Replace(l.key)
}

// split is how a list is written where there is only text.
func (l *leaf) split(text string) []string {
	if l.field.Kind() != reflect.Slice {
		return []string{text}
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// set stores the value that texts spell; home is what ~ stands for. The error
// begins with from.
func (l *leaf) set(texts []string, from, home string) error {
	if err := l.parse(texts, from, home); err != nil {
		return fmt.Errorf("%s: %w", origin(from, l.key), err)
	}
	l.from = from
	return nil
}

// origin names key and where its value came from, none of them twice.
func origin(from, key string) string {
	switch {
	case from == "default":
		return key
	case strings.HasPrefix(from, "--"), isVariable(from):
		return from // it is the key, spelt otherwise
	}
	return from + ": " + key
}

// isVariable reports whether what a value came from is the environment: a file
// is named with a line, whatever its name begins with.
func isVariable(from string) bool {
	return strings.HasPrefix(from, envPrefix) && !strings.Contains(from, ":")
}

func (l *leaf) parse(texts []string, from, home string) error {
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

func (l *leaf) parseString(p *string, text, home string) error {
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

// text prints the value as it could be written in the file.
func (l *leaf) text() string {
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
