package main

import (
	"slices"
	"strconv"
	"strings"
)

// join is a list of ids for people.
func join(ids []int64) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(texts, ", ")
}

// without are the ids that are not among some others.
func without(ids, some []int64) []int64 {
	out := []int64{}
	for _, id := range ids {
		if !slices.Contains(some, id) {
			out = append(out, id)
		}
	}
	return out
}

// taskID reads the id of a task.
func taskID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usage("%q is no id of a task: that is a number", text)
	}
	return id, nil
}

func taskIDs(args []string) (ids []int64, err error) {
	for _, arg := range args {
		id, err := taskID(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
