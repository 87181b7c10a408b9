"""The vision path: units, their cost, the plan that places them on ranks, and the encoding that obeys it."""
