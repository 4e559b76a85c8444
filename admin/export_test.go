package admin

var (
	ParsePlace = parsePlace // what a list does with its Page.After
	PlaceOf    = Task.place // where the page begins after one that ends with a task
)
