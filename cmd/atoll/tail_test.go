package main

import "testing"

func TestLastLines(t *testing.T) {
	tests := []struct {
		data     string
		n        int
		want     string
		complete bool
	}{
		{"", 0, "", true},
		{"", 2, "", false},
		{"one\ntwo\nthree\n", 0, "", true},
		{"one\ntwo\nthree\n", 2, "two\nthree\n", true},
		{"one\ntwo\nthree\n", 3, "one\ntwo\nthree\n", true},
		{"one\ntwo\nthree\n", 4, "one\ntwo\nthree\n", false},
		{"one\ntwo", 1, "two", true},
		{"\n\n\n", 2, "\n\n", true},
	}
	for _, tt := range tests {
		tail := streamTail{start: 100, data: []byte(tt.data)}
		offset, complete := tail.lastLines(tt.n)
		if got := tt.data[offset-100:]; got != tt.want || complete != tt.complete {
			t.Errorf("lastLines(%q, %d) = %q, %v, want %q, %v", tt.data, tt.n, got, complete, tt.want, tt.complete)
		}
	}
}

func TestParseTail(t *testing.T) {
	tests := []struct {
		in   string
		want int
		ok   bool
	}{
		{"all", -1, true}, {"0", 0, true}, {"20", 20, true}, {"-1", 0, false}, {"some", 0, false}, {"", 0, false},
	}
	for _, tt := range tests {
		if got, err := parseTail(tt.in); got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseTail(%q) = %d, %v, want %d, ok %v", tt.in, got, err, tt.want, tt.ok)
		}
	}
}
