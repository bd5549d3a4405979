package conversation

import (
	"context"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/filesync"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// syncedTree returns the directory that is synchronized with object storage.
func (sb *sandbox) syncedTree() filesync.Tree {
	return filesync.Tree{FS: atoll.Files(sb.instance), Dir: sb.template.WorkDir()}
}

// Pull implements hooks.Files: it makes the sandbox's directory equal to the latest version. It
// does nothing if the directory was synchronized recently.
func (sb *sandbox) Pull(ctx context.Context) (*agent.SyncStats, error) { return sb.pullVersion(ctx, 0) }

// pullVersion pulls a version; 0 means the latest.
func (sb *sandbox) pullVersion(ctx context.Context, version int64) (*agent.SyncStats, error) {
	o := filesync.PullOptions{Version: version}
	if version == 0 {
		o.IfStale = sb.service.opts.StaleAfter
	}
	st, err := sb.place.Remote.Pull(ctx, sb.syncedTree(), o)
	return sb.recordSync(ctx, st, err)
}

// Push implements hooks.Files: it makes a version of the sandbox's directory, and removes the
// old versions that the template does not retain.
func (sb *sandbox) Push(ctx context.Context) (*agent.SyncStats, error) {
	st, err := sb.place.Remote.Push(ctx, sb.syncedTree(), filesync.PushOptions{})
	out, err := sb.recordSync(ctx, st, err)
	keep := filesync.Keep{Last: sb.template.KeepVersions, Within: time.Duration(sb.template.KeepDays) * 24 * time.Hour}
	if err == nil && keep != (filesync.Keep{}) {
		if _, err := sb.place.Remote.Prune(ctx, keep); err != nil {
			sb.service.log.Warn("conversation: cannot remove old versions", "at", sb.place.Remote.String(), "err", err)
		}
	}
	return out, err
}

// recordSync records the result of a push or a pull in the sandbox's record.
func (sb *sandbox) recordSync(ctx context.Context, st *filesync.Stats, err error) (*agent.SyncStats, error) {
	var out *agent.SyncStats
	if st != nil {
		out = &agent.SyncStats{
			Version: st.Version, FilesDownloaded: st.FilesDownloaded, FilesUploaded: st.FilesUploaded, FilesDeleted: st.FilesDeleted,
			FilesSkipped: st.FilesSkipped, BytesTransferred: st.BytesTransferred, Duration: st.Duration.Milliseconds(),
			Conflicts: len(st.Conflicts), Failed: st.Failed,
		}
	}
	if st != nil && st.Dropped.Count > 0 {
		sb.service.log.Warn("conversation: a pull could not set set-user-ID or set-group-ID bits", "sandbox", sb.record.ID, "files", st.Dropped.Count)
	}
	meta := sb.record.Meta
	if meta.SyncError = ""; err != nil {
		meta.SyncError = errorText(err)
	} else {
		meta.LastSync, meta.SyncStats = time.Now().Unix(), out
	}
	sb.record.Meta = meta
	if !sb.record.Deleted.IsZero() { // the creation saves the record at its end
		return out, err
	}
	writeErr := sb.service.updateSandbox(context.WithoutCancel(ctx), sb.record.Account, sb.record.ID, func(record *store.AgentSandbox) { record.Meta = meta })
	if writeErr != nil {
		sb.service.log.Warn("conversation: cannot record a sync", "sandbox", sb.record.ID, "err", writeErr)
	}
	return out, err
}

// errorText returns the text of an error for a record: valid UTF-8, and not too long.
func errorText(err error) string {
	text := strings.ToValidUTF8(err.Error(), "�")
	if len(text) > maxSyncError {
		text = strings.ToValidUTF8(text[:maxSyncError], "") + "..."
	}
	return text
}

// maxSyncError limits the text of an error in a record, in bytes.
const maxSyncError = 4 << 10
