package admin

// PlaceOf is where the page begins after one that ends with a task.
var PlaceOf = Task.place
