package config

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var update = flag.Bool("update", false, "write docs/reference/configuration.md")

// The reference lists each setting with its type, default, variable and meaning. The defaults are those of Linux.
func TestReference(t *testing.T) {
	const page, home = "../docs/reference/configuration.md", "/home/me"
	cfg := defaultConfig(map[string]string{"HOME": home})
	s := schemaOf(cfg, home)
	var b strings.Builder
	b.WriteString(`# Settings

<!-- Written by go test ./config -update -->

This page lists all settings, with the defaults of Linux. [Configuration](../configuration.md) explains where you write
them. A setting also has an environment variable: ` + "`ATOLL_`" + `, and the key in capitals with ` + "`_`" + ` for each dot, such as
` + "`ATOLL_LOG_LEVEL`" + ` for ` + "`log.level`" + `.
`)
	var tables []string
	settings := map[string][]*setting{}
	for _, l := range s.settings {
		table, _, nested := strings.Cut(l.key, ".")
		if !nested {
			table = "General"
		}
		if settings[table] == nil {
			tables = append(tables, table)
		}
		settings[table] = append(settings[table], l)
	}
	for _, table := range tables {
		writeSettingsTable(&b, table)
		for _, l := range settings[table] {
			writeSetting(&b, l, home)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.named)) {
		if err := s.addNamedTable(name + ".NAME"); err != nil {
			t.Fatal(err)
		}
		writeSettingsTable(&b, name+".NAME")
		for _, l := range s.settings {
			if strings.HasPrefix(l.key, name+".NAME.") {
				writeSetting(&b, l, home)
			}
		}
		fmt.Fprintf(&b, "\nNAME is a name of your choice. Only the file can set these.\n")
	}
	for _, l := range s.settings {
		if l.doc == "" {
			t.Errorf("the setting %s has no documentation", l.key)
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(page); err != nil || string(have) != b.String() {
		t.Errorf("%s is outdated: run go test ./config -run TestReference -update (%v)", page, err)
	}
}

func writeSettingsTable(b *strings.Builder, title string) {
	fmt.Fprintf(b, "\n## %s\n\n| setting | meaning |\n| --- | --- |\n", title)
}

// shorten removes zeros at the end of durations: 24h0m0s becomes 24h.
var shorten = strings.NewReplacer("h0m0s ", "h", "m0s ", "m")

func writeSetting(b *strings.Builder, l *setting, home string) {
	value := strings.ReplaceAll(l.formatValue(), home, "~")
	if d, ok := l.field.Interface().(atoll.Duration); ok && d > 0 {
		value = strings.TrimSpace(shorten.Replace(value + " "))
	}
	about := typeOf(l)
	if value != "" {
		about += ", default `" + strings.ReplaceAll(value, ",", "`, `") + "`"
	}
	doc := strings.ReplaceAll(l.doc, "|", `\|`)
	if l.alias != "" {
		doc += "; also `" + l.alias + "`"
	}
	fmt.Fprintf(b, "| `%s`<br>%s | %s |\n", l.key, about, doc)
}

// typeOf returns the type of a setting for readers of the reference.
func typeOf(l *setting) string {
	switch l.field.Interface().(type) {
	case Secret:
		return "secret"
	case atoll.Bytes:
		return "size"
	case atoll.Duration:
		return "duration"
	case []string:
		return "list"
	}
	switch {
	case l.form == "path":
		return "path"
	case l.form != "":
		return "`" + strings.Join(strings.Fields(l.form), "`, `") + "`"
	}
	switch l.field.Kind() {
	case reflect.Int:
		return "number"
	case reflect.Float64:
		return "decimal"
	case reflect.Bool:
		return "true or false"
	}
	return "text"
}
