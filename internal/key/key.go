// Package key makes the keys of tasks, which no two tasks of any databases share.
package key

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// idBits are those of a task's id. The two before them are the UUID's variant.
	idBits = 62
	// unknown stands for a database that has no id, as in an app's test of a handler.
	unknown = "00000000-0000-0000-0000-000000000000"
	version = '8'
)

// Of is the key of a task: a UUID of version 8 with the first half of the database's id, which is a
// random UUID, and the task's id.
func Of(databaseID string, taskID int64) string {
	if len(databaseID) != len(unknown) {
		databaseID = unknown
	}
	id := uint64(taskID)&(1<<idBits-1) | 1<<(idBits+1)
	return fmt.Sprintf("%s%c%s-%04x-%012x", databaseID[:14], version, databaseID[15:18], id>>48, id&(1<<48-1))
}

// TaskID is the id of the task that has the key. It is not ok if the text is no key.
func TaskID(text string) (taskID int64, ok bool) {
	if len(text) != len(unknown) || text[8] != '-' || text[13] != '-' || text[14] != version {
		return 0, false
	}
	id, err := strconv.ParseUint(strings.ReplaceAll(text[19:], "-", ""), 16, 64)
	if err != nil || id>>idBits != 2 {
		return 0, false
	}
	taskID = int64(id & (1<<idBits - 1))
	return taskID, Of(text, taskID) == text
}
