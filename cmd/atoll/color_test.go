package main

import (
	"os"
	"reflect"
	"testing"
)

func TestColorStates(t *testing.T) {
	rows := [][]string{{"ID", "STATE"}, {"a", "running"}, {"b", "failed (out of memory)"}, {"c", "paused"}, {"d", "stopped (0)"}}
	want := [][]string{
		{"ID", "\x1b[39mSTATE\x1b[39m"}, {"a", "\x1b[32mrunning\x1b[39m"}, {"b", "\x1b[31mfailed (out of memory)\x1b[39m"},
		{"c", "\x1b[33mpaused\x1b[39m"}, {"d", "\x1b[39mstopped (0)\x1b[39m"},
	}
	if colorStates(rows); !reflect.DeepEqual(rows, want) {
		t.Errorf("got %q, want %q", rows, want)
	}
	none := [][]string{{"ID"}, {"running"}}
	if colorStates(none); none[1][0] != "running" {
		t.Errorf("a table without states has %q", none[1][0])
	}
}

func TestUseColor(t *testing.T) {
	tests := []struct {
		color colorValue
		env   []string
		want  bool
	}{
		{"auto", nil, false}, // a file is no terminal
		{"always", nil, true},
		{"always", []string{"NO_COLOR=1"}, true},
		{"never", nil, false},
	}
	out, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, tt := range tests {
		if got := (&app{stdout: out, color: tt.color, env: tt.env}).useColor(); got != tt.want {
			t.Errorf("--color %s, %q: %v, want %v", tt.color, tt.env, got, tt.want)
		}
	}
}
