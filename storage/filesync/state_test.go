package filesync_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// Conversations store the JSON form of Stats.
func TestStatsJSON(t *testing.T) {
	st := filesync.Stats{
		Version: 7, FilesDownloaded: 1, FilesUploaded: 2, FilesDeleted: 3, FilesSkipped: 4, BytesTransferred: 5, Duration: 1234567 * time.Microsecond,
		Conflicts: []filesync.Conflict{{Path: "a", Kept: filesync.KeepLocal}}, Errors: []string{"b: no"}, Failed: 1,
	}
	got, err := json.Marshal(st)
	want := `{"version":7,"files_downloaded":1,"files_uploaded":2,"files_deleted":3,"files_skipped":4,"bytes_transferred":5,` +
		`"conflicts":[{"path":"a","kept":"local"}],"errors":["b: no"],"failed":1,"duration_ms":1234}`
	if string(got) != want || err != nil {
		t.Errorf("it is %s, %v, want %s", got, err, want)
	}
	if through, _ := json.Marshal(&st); string(through) != want {
		t.Errorf("by a pointer it is %s", through)
	}
	var again filesync.Stats
	if err := json.Unmarshal(got, &again); err != nil {
		t.Fatal(err)
	}
	if st.Duration = 1234 * time.Millisecond; !reflect.DeepEqual(again, st) {
		t.Errorf("read again it is %+v, want %+v", again, st)
	}
	if err := json.Unmarshal([]byte(`{"duration_ms":"soon"}`), &again); err == nil {
		t.Error("a duration that is none was read")
	}
}
